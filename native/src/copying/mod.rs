//! The copy stream between brokers: what a leader sends, and what its followers report.
//!
//! The twins are in `headrace.broker.replication`: `copying` of a follower, and `followers` of a leader. Python owns the
//! state here, too. Each row of a frame is looked at first; the twin goes on from the first that is unusual.

pub mod answering;
pub mod copy;
pub mod others;
pub mod reports;
mod sight;
pub mod taking;
