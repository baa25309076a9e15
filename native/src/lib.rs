//! The hot roads of Headrace, compiled. `docs/rooms/native.md` tells what is here and why.
//!
//! Every function has a twin in Python, which has all rules and all errors. One that is here either answers as its twin
//! does, or returns `None`: the twin is to look at these bytes itself. Nothing here has a clock, a thread, randomness or
//! state of its own.

mod attributes;
mod batches;
mod bytes;
mod copying;
mod fetch;
mod panics;
mod partition;
mod produce;
mod records;
mod requests;
mod varint;

use pyo3::prelude::*;

/// Rises when a function takes or gives something else than before: `headrace.native` knows the same number.
const INTERFACE: u32 = 7;

#[pymodule]
fn headrace_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    panics::note_panics();
    module.add("INTERFACE", INTERFACE)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(records::walk_records, module)?)?;
    module.add_function(wrap_pyfunction!(batches::check_batch, module)?)?;
    module.add_function(wrap_pyfunction!(fetch::read_plain_fetch, module)?)?;
    module.add_function(wrap_pyfunction!(fetch::write_plain_found, module)?)?;
    module.add_function(wrap_pyfunction!(panics::fail, module)?)?;
    module.add_function(wrap_pyfunction!(produce::read_plain_produce, module)?)?;
    module.add_class::<partition::HotPartition>()?;
    module.add_class::<copying::copy::HotCopy>()?;
    module.add_function(wrap_pyfunction!(copying::taking::copy_rows, module)?)?;
    module.add_function(wrap_pyfunction!(copying::taking::write_reports, module)?)?;
    module.add_function(wrap_pyfunction!(copying::reports::take_reports, module)?)?;
    module.add_function(wrap_pyfunction!(copying::answering::take_ready, module)?)?;
    module.add_class::<partition::state::LogState>()?;
    module.add_class::<partition::state::SegmentState>()?;
    module.add_class::<partition::state::ContentsState>()?;
    module.add_class::<partition::state::LeaderState>()?;
    module.add_class::<partition::state::RoleState>()?;
    module.add_function(wrap_pyfunction!(partition::producing::append_all, module)?)?;
    module.add_function(wrap_pyfunction!(partition::producing::produce_one, module)?)?;
    module.add_function(wrap_pyfunction!(partition::reading::find_places, module)?)?;
    module.add_function(wrap_pyfunction!(partition::reading::read_places, module)?)?;
    module.add_function(wrap_pyfunction!(partition::reading::watch_all, module)?)?;
    module.add_function(wrap_pyfunction!(partition::reading::unwatch_all, module)?)?;
    Ok(())
}
