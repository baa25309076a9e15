//! Reads and changes the attributes of Python's objects.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

/// An attribute of an object, by its name.
#[macro_export]
macro_rules! attribute {
    ($owner:expr, $name:literal) => {
        $owner.getattr(pyo3::intern!($owner.py(), $name))?
    };
}

/// Give an attribute another value.
#[macro_export]
macro_rules! change {
    ($owner:expr, $name:literal, $value:expr) => {
        $owner.setattr(pyo3::intern!($owner.py(), $name), $value)?
    };
}

/// Call a method without arguments by keyword.
#[macro_export]
macro_rules! call {
    ($owner:expr, $name:literal $(, $argument:expr)*) => {
        $owner.call_method1(pyo3::intern!($owner.py(), $name), ($($argument,)*))?
    };
}

/// A number that is added to an attribute.
pub fn add(owner: &Bound<'_, PyAny>, name: &Bound<'_, PyString>, more: i64) -> PyResult<i64> {
    let sum = owner.getattr(name)?.extract::<i64>()? + more;
    owner.setattr(name, sum)?;
    Ok(sum)
}

/// A named tuple of this class, as `wire.codec.new` makes one.
pub fn named<'py>(
    new: &Bound<'py, PyAny>,
    class: &Bound<'py, PyType>,
    fields: Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    new.call1((class, fields))
}

/// The `at`-th field of a named tuple.
pub fn field<'py>(tuple: &Bound<'py, PyAny>, at: usize) -> PyResult<Bound<'py, PyAny>> {
    tuple.cast::<PyTuple>()?.get_item(at)
}
