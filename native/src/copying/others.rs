//! The reports of a leader's followers, as they are noted here alone until Python asks for them. The twins are `Progress`
//! and `Leader.on_fetch` in `headrace.replica.leader`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::attribute;
use crate::attributes::field;
use crate::partition::state::{FOLLOWERS, ISR_ENDS, NODE, REPLICAS};

/// The fields of `Progress`, in its order.
#[derive(Clone, Copy, FromPyObject, IntoPyObject)]
pub struct Progress(pub i64, pub i64, pub i64, pub f64, pub f64, pub bool, pub i64);

/// What a follower reports, and how this leader stands then.
pub struct Report {
    pub broker_epoch: i64,
    pub flushed_end: i64,
    pub readable_from: i64,
    pub log_end: i64,
    pub now: f64,
    pub may_join: bool,
}

/// What a report has changed.
pub enum Noted {
    /// Nothing: the follower does not count, or has not reported before in this epoch. The twin is to note it.
    Nothing,
    /// Only what is known of the follower.
    Unchanged,
    /// An end has risen, or fallen.
    End(i64),
}

/// A follower that has reported in this epoch, and is in sync, or would be as proposed.
struct Other {
    replica: i64,
    /// As in `isr_ends`.
    end: i64,
    progress: Progress,
    /// Python's `Leader` lacks its last report.
    is_new: bool,
}

struct Known {
    others: Vec<Other>,
    /// The lowest end of those that count and have not reported; `i64::MAX`: there are none.
    silent: i64,
}

/// None: Python's `Leader` was not looked at yet.
pub struct Others(Mutex<Option<Known>>);

impl Others {
    pub fn unknown() -> Self {
        Self(Mutex::new(None))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Python has another `Leader`.
    pub fn forget(&self) {
        *self.lock() = None;
    }

    /// Returns the lowest end of all others that count, where that of this one is another now.
    pub fn on_report(&self, leader: &Bound<'_, PyAny>, replica: i64, report: &Report) -> PyResult<Noted> {
        if self.lock().is_none() {
            let known = Known::of(leader)?; // with the lock free: this runs Python
            *self.lock() = Some(known);
        }
        let mut held = self.lock();
        let Some(known) = held.as_mut() else {
            return Ok(Noted::Nothing);
        };
        let Some(other) = known.others.iter_mut().find(|other| other.replica == replica) else {
            return Ok(Noted::Nothing);
        };
        other.progress = other.progress.after(report);
        other.is_new = true;
        if other.end == report.flushed_end {
            return Ok(Noted::Unchanged);
        }
        other.end = report.flushed_end;
        Ok(Noted::End(known.others.iter().fold(known.silent, |lowest, other| lowest.min(other.end))))
    }

    /// The `followers` of a `Leader` that lacks the last reports, whose ends are set in `ends`. None: there are none.
    pub fn told<'py>(
        &self,
        leader: &Bound<'py, PyAny>,
        ends: &Bound<'py, PyDict>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let py = leader.py();
        let new: Vec<(i64, i64, Progress)> = match self.lock().as_ref() {
            None => Vec::new(),
            Some(known) => {
                let new = known.others.iter().filter(|other| other.is_new);
                new.map(|other| (other.replica, other.end, other.progress)).collect()
            }
        };
        if new.is_empty() {
            return Ok(None);
        }
        let followers = field(leader, FOLLOWERS)?.cast_into::<PyDict>()?.copy()?;
        let make = attribute!(py.get_type::<PyTuple>(), "__new__");
        for (replica, end, progress) in new {
            if let Some(before) = followers.get_item(replica)? {
                followers.set_item(replica, make.call1((before.get_type(), progress.into_pyobject(py)?))?)?;
                ends.set_item(replica, end)?;
            }
        }
        Ok(Some(followers))
    }
}

impl Known {
    fn of(leader: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (node, replicas) = (field(leader, NODE)?, field(leader, REPLICAS)?);
        let (ends, followers) = (field(leader, ISR_ENDS)?, field(leader, FOLLOWERS)?);
        let followers = followers.cast::<PyDict>()?;
        let (mut others, mut silent) = (Vec::new(), i64::MAX);
        for (replica, end) in ends.cast::<PyDict>()? {
            let (end, known) = (end.extract::<i64>()?, followers.get_item(&replica)?);
            if replica.eq(&node)? {
                continue;
            }
            match known {
                Some(progress) if replicas.contains(&replica)? => {
                    others.push(Other {
                        replica: replica.extract()?,
                        end,
                        progress: progress.extract()?,
                        is_new: false,
                    });
                }
                _ => silent = silent.min(end),
            }
        }
        Ok(Self { others, silent })
    }
}

impl Progress {
    /// `_progress` of `headrace.replica.leader`.
    fn after(self, report: &Report) -> Self {
        let Self(broker_epoch, _, log_end_at_fetch, fetched_at, mut caught_up_at, _, _) = self;
        if broker_epoch == report.broker_epoch && report.flushed_end >= log_end_at_fetch && fetched_at > caught_up_at {
            caught_up_at = fetched_at;
        }
        if report.flushed_end >= report.log_end {
            caught_up_at = report.now;
        }
        Self(
            report.broker_epoch,
            report.flushed_end,
            report.log_end,
            report.now,
            caught_up_at,
            report.may_join,
            report.readable_from,
        )
    }
}
