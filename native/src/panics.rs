//! A panic is a bug here. It becomes an exception that says where it was, and closes one connection.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

thread_local! {
    /// What the last panic of this thread said, and where.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Have panics noted instead of printed. Called once, when the module is imported.
pub fn note_panics() {
    set_hook(Box::new(|panic| {
        LAST.set(panic.to_string().replace('\n', " "));
    }));
}

/// Raises `RuntimeError` where the work panics. Nothing here has state that could be left half changed.
pub fn guarded<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(PyRuntimeError::new_err(format!("native code failed: {}", LAST.take()))))
}

/// For tests: panic as a bug would.
#[pyfunction]
#[pyo3(signature = (*_arguments))]
pub fn fail(_arguments: &Bound<'_, PyAny>) -> PyResult<()> {
    guarded(|| panic!("a test wanted it"))
}
