//! `terrace._native`: what the Python package calls of Terrace.
//!
//! In: texts, numbers and Arrow tables. Out: JSON, of which the package makes data frames, and Arrow tables. Must not: model or decide anything;
//! `terrace-study` does, for the command as well, so that both give the same cells.

use pyo3::prelude::*;

mod advise;
mod lists;
mod policy;
mod reproduce;
mod simulate;
mod sweep;
mod trace;
mod watch;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", terrace_study::provenance::VERSION)?;
    module.add("COMMIT", terrace_study::provenance::COMMIT)?;
    module.add_function(wrap_pyfunction!(simulate::compare, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::run, module)?)?;
    module.add_function(wrap_pyfunction!(advise::advise, module)?)?;
    module.add_function(wrap_pyfunction!(lists::machines, module)?)?;
    module.add_function(wrap_pyfunction!(lists::policies, module)?)?;
    module.add_function(wrap_pyfunction!(lists::workloads, module)?)?;
    module.add_function(wrap_pyfunction!(reproduce::experiments, module)?)?;
    module.add_function(wrap_pyfunction!(reproduce::reproduce, module)?)?;
    module.add_function(wrap_pyfunction!(trace::open_trace, module)?)?;
    module.add_function(wrap_pyfunction!(trace::trace_header, module)?)?;
    module.add_function(wrap_pyfunction!(trace::write_trace, module)?)?;
    module.add_function(wrap_pyfunction!(sweep::specification, module)?)?;
    module.add_class::<sweep::Sweep>()?;
    Ok(())
}
