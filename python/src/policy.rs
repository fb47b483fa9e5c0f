//! A policy written in Python, behind the trait that every policy implements.
//!
//! In: what the engine tells a policy. Out: calls of the Python object's methods, and requests from what it answers. Must not: swallow an
//! exception: it ends the simulation and comes out of `compare` or `run` as it was raised.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use terrace_core::observation::{Access, Observation, Observations};
use terrace_core::pages::Pages;
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Metric, Needs, Policy, PolicyReport, Profile, SamplePeriods, Schedule,
};
use terrace_core::units::{PageId, TierId, Time};
use terrace_study::options::OwnPolicy;

use crate::watch::raise_through;

/// The tier of a page without memory behind it, in the bytes that Python gets.
const NOWHERE: u8 = 255;

/// A name for as long as the process lives, as the trait wants it; each is kept once.
fn lasting(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = names.get(name) {
        return name;
    }
    let kept: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(kept);
    kept
}

/// A Python class, or anything that makes a policy when it is called.
pub(crate) struct InPython {
    name: &'static str,
    class: Py<PyAny>,
}

impl InPython {
    pub(crate) fn new(name: &str, class: Py<PyAny>) -> InPython {
        InPython { name: lasting(name), class }
    }
}

impl OwnPolicy for InPython {
    fn build(&self, settings: &BTreeMap<String, String>) -> Box<dyn Policy> {
        let made = Python::attach(|py| -> PyResult<Called> {
            let given = PyDict::new(py);
            for (key, value) in settings {
                given.set_item(key, value)?;
            }
            let object = self.class.call(py, (), Some(&given))?;
            let needs: Vec<String> = object.getattr(py, "needs")?.extract(py)?;
            let mut wanted = Needs::default();
            for need in &needs {
                match need.as_str() {
                    "scans" => wanted.scans = true,
                    "samples" => wanted.samples = true,
                    other => {
                        let why = format!("{}.needs: {other:?}: expected scans or samples", self.name);
                        return Err(PyValueError::new_err(why));
                    }
                }
            }
            let mut called = Called { name: self.name, object, needs: wanted, schedule: Schedule::default() };
            called.ask_schedule(py)?;
            Ok(called)
        });
        Box::new(made.unwrap_or_else(|error| raise_through(error)))
    }
}

/// One policy of the class.
struct Called {
    name: &'static str,
    object: Py<PyAny>,
    needs: Needs,
    schedule: Schedule,
}

/// Seconds as the engine counts them.
fn time(seconds: f64) -> Time {
    Time::from_nanos((seconds.max(0.0) * 1e9) as u64)
}

impl Called {
    /// What the object answers in `schedule()`: times in seconds, share of blocks, sampling periods.
    fn ask_schedule(&mut self, py: Python<'_>) -> PyResult<()> {
        type Answer = (Option<f64>, f64, Option<f64>, Option<u32>, Option<u32>);
        let (scan_at, share, wake_at, loads, stores): Answer =
            self.object.call_method0(py, "_schedule")?.extract(py)?;
        let sampling = loads.zip(stores).map(|(loads, stores)| SamplePeriods { loads, stores });
        self.schedule = Schedule {
            cadence: Cadence { scan_at: scan_at.map(time), share, sampling, hint_scan: None },
            wake_at: wake_at.map(time),
        };
        Ok(())
    }

    fn tell(&mut self, now: Time, seen: &Observations<'_>) -> PyResult<()> {
        Python::attach(|py| {
            let seconds = now.as_secs_f64();
            match seen {
                Observations::Scan(scan) => {
                    // The bytes of the states as documented in Python: bit 0 accessed, bit 1 dirty, bits 4 to 7 the tier; 255 is absent.
                    let states: Vec<u8> = scan
                        .ptes
                        .iter()
                        .map(|pte| match pte.tier() {
                            None => NOWHERE,
                            Some(tier) => u8::from(pte.accessed()) | (u8::from(pte.dirty()) << 1) | (tier.0 << 4),
                        })
                        .collect();
                    let window = scan.window.map(|window: Duration| window.as_secs_f64());
                    self.object.call_method1(
                        py,
                        "_scan",
                        (seconds, scan.first.0, PyBytes::new(py, &states), window),
                    )?;
                }
                Observations::Events(events) => {
                    let told = PyList::empty(py);
                    for event in *events {
                        match *event {
                            Observation::Sampled { page, access, period } => {
                                told.append(("sampled", page.0, access == Access::Store, period))?;
                            }
                            Observation::HintFault { page, write, .. } => {
                                told.append(("hint_fault", page.0, write, 1))?;
                            }
                            Observation::Refault { page } => told.append(("refault", page.0, false, 1))?,
                            Observation::Counted { page, accesses } => {
                                told.append(("counted", page.0, false, accesses))?;
                            }
                            Observation::Allocated { page, tier } => {
                                told.append(("allocated", page.0, false, u32::from(tier.0)))?;
                            }
                            Observation::Freed { page } => told.append(("freed", page.0, false, 0))?,
                        }
                    }
                    self.object.call_method1(py, "_events", (seconds, told))?;
                }
            }
            self.ask_schedule(py)
        })
    }

    fn ask(
        &mut self,
        now: Time,
        capacity: &CapacityView<'_>,
        pages: &Pages,
        requests: &mut MoveRequests,
    ) -> PyResult<()> {
        let mut tiers = vec![NOWHERE; pages.capacity()];
        for (block, _) in pages.blocks() {
            let first = block.first_page().index();
            for (place, page) in pages.block_pages(block).iter().enumerate() {
                tiers[first + place] = page.tier().map_or(NOWHERE, |tier| tier.0);
            }
        }
        Python::attach(|py| {
            let room = PyDict::new(py);
            room.set_item("used", capacity.tiers.iter().map(|tier| tier.used).collect::<Vec<_>>())?;
            room.set_item("capacity", capacity.tiers.iter().map(|tier| tier.capacity).collect::<Vec<_>>())?;
            room.set_item("fast_limit", capacity.fast_limit)?;
            room.set_item("footprint", capacity.footprint)?;
            room.set_item("fast_room", capacity.fast_room())?;
            room.set_item("fast_excess", capacity.fast_excess())?;
            let wanted = self.object.call_method1(py, "_plan", (now.as_secs_f64(), room, PyBytes::new(py, &tiers)))?;
            for request in wanted.bind(py).try_iter()? {
                let (page, tier): (u32, u8) = request?.extract()?;
                let from = tiers.get(page as usize).copied().unwrap_or(NOWHERE);
                if from == NOWHERE {
                    return Err(PyValueError::new_err(format!(
                        "{}.plan: page {page} has no memory behind it",
                        self.name
                    )));
                }
                if usize::from(tier) >= capacity.tiers.len() {
                    let most = capacity.tiers.len() - 1;
                    return Err(PyValueError::new_err(format!(
                        "{}.plan: tier {tier}: expected 0 to {most}",
                        self.name
                    )));
                }
                if tier != from {
                    let reason = if tier < from { Reason::Hot } else { Reason::Cold };
                    requests.move_to(PageId(page), TierId(tier), reason);
                }
            }
            self.ask_schedule(py)
        })
    }
}

impl Policy for Called {
    fn profile(&self) -> Profile {
        Profile::new(self.name, self.needs)
    }

    fn observe(&mut self, now: Time, seen: Observations<'_>, _pages: &mut Pages) {
        self.tell(now, &seen).unwrap_or_else(|error| raise_through(error));
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        self.ask(now, capacity, pages, requests).unwrap_or_else(|error| raise_through(error));
    }

    fn schedule(&self) -> Schedule {
        self.schedule
    }

    fn report(&self) -> PolicyReport {
        let found = Python::attach(|py| self.object.call_method0(py, "report")?.extract::<BTreeMap<String, f64>>(py));
        let found = found.unwrap_or_else(|error| raise_through(error));
        let metrics = found.into_iter().map(|(name, value)| Metric { name: lasting(&name), value }).collect();
        PolicyReport { memory_bytes: 0, metrics }
    }
}
