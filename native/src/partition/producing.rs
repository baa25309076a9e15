//! A plain Produce. The twins are `_Road.serve`, for one batch, and `_Road._take_all`, for several, in
//! `headrace.broker.handlers.plain_produce`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice};

use super::HotPartition;
use super::append::Facts;
use super::reading::hot_of;
use crate::attributes::field;
use crate::bytes::Lent;
use crate::panics::guarded;
use crate::produce;
use crate::{attribute, call};

const ACKS_ALL: i16 = -1;
const NO_TIME: i64 = -1;

/// A batch whose partition and records are as usual.
struct Part<'py> {
    partition: Bound<'py, PyAny>,
    hot: Bound<'py, HotPartition>,
    records: Bound<'py, PyAny>,
    index: i32,
    facts: Facts,
}

/// A topic as it stands in the request, and how many of the parts are its own.
type Topic<'py> = (Bound<'py, PyBytes>, usize);

/// Append the batches of `topics`, each (topic, list of (index, batch)), to the partitions that `known` has by topic and
/// index. Returns None where nothing was done: the twin is to look. Returns the answer's frame where all are appended and
/// committed. Otherwise it returns what became of each, in order: (partition, facts of the records, outcome). The outcome
/// is an `Appended`, a `WriteRefusal`, or None, where the twin is to append it.
#[pyfunction]
pub fn append_all<'py>(
    py: Python<'py>,
    correlation_id: i32,
    topics: &Bound<'py, PyList>,
    known: &Bound<'py, PyDict>,
    needs_isr: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    guarded(|| {
        let Some((topics, parts)) = look(py, topics, known)? else {
            return Ok(None);
        };
        let mut answer = Answer::new(correlation_id, topics.len());
        let (mut ends, mut are_settled, mut at) = (Vec::with_capacity(parts.len()), true, 0);
        for (topic, count) in &topics {
            answer.begin(topic, *count)?;
            for part in &parts[at..at + count] {
                let outcome = append(py, part, needs_isr, &ends)?;
                match &outcome {
                    Outcome::Appended(base, end) => {
                        are_settled &= needs_isr && part.hot.get().has_committed(py, *end)?;
                        answer.add(part.index, *base, part.hot.get().start_offset(py)?);
                    }
                    Outcome::Untaken | Outcome::Refused(_) => are_settled = false,
                }
                ends.push(outcome);
            }
            at += count;
            answer.end();
        }
        if are_settled { answer.frame(py).map(Some) } else { told(py, parts, ends).map(Some) }
    })
}

/// The frame of a plain Produce, without its length, of one batch that is to be on all in sync: append it to the
/// partition that `known` has by topic and index. Returns None where nothing was done, or the partition has noted a
/// failure: the twin is to look. Returns the answer's frame where the batch is committed. Otherwise it returns what waits:
/// (correlation id, timeout, topic, index, partition, `Appended`, start offset).
#[pyfunction]
pub fn produce_one<'py>(
    py: Python<'py>,
    frame: &Bound<'py, PyAny>,
    known: &Bound<'py, PyDict>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    guarded(|| {
        let lent = Lent::of(frame)?;
        let data = lent.slice(py);
        let Some(request) = produce::read(data) else {
            return Ok(None);
        };
        let (ACKS_ALL, [topic]) = (request.acks, &request.topics[..]) else {
            return Ok(None);
        };
        let [part] = &topic.parts[..] else {
            return Ok(None);
        };
        let name = PyBytes::new(py, &data[topic.start..topic.end]);
        let Some(partition) = known.get_item((&name, part.index))? else {
            return Ok(None);
        };
        let Some(hot) = hot_of(&partition) else {
            return Ok(None);
        };
        let hot = hot.get();
        let records = frame.get_item(PySlice::new(py, isize::try_from(part.start)?, isize::try_from(part.end)?, 1))?;
        let (base, end) = match guarded(|| hot.take_plain(py, &records, true)) {
            Ok(Some(offsets)) => offsets,
            Ok(None) => return Ok(None),
            Err(error) => {
                call!(partition, "on_native_failure", &records, error.into_value(py));
                return Ok(None);
            }
        };
        let start = hot.start_offset(py)?;
        if hot.has_committed(py, end)? {
            let mut answer = Answer::new(request.correlation_id, 1);
            answer.begin(&name, 1)?;
            answer.add(part.index, base, start);
            answer.end();
            return answer.frame(py).map(Some);
        }
        let appended = hot.appended(py, base, end)?;
        let waits = (request.correlation_id, request.timeout_ms, name, part.index, partition, appended, start);
        Ok(Some(waits.into_pyobject(py)?.into_any()))
    })
}

enum Outcome<'py> {
    /// Its first offset, and the one after its last.
    Appended(i64, i64),
    Untaken,
    /// The disk has failed.
    Refused(Bound<'py, PyAny>),
}

/// Look at everything. Changes nothing.
#[allow(clippy::type_complexity)]
fn look<'py>(
    py: Python<'py>,
    topics: &Bound<'py, PyList>,
    known: &Bound<'py, PyDict>,
) -> PyResult<Option<(Vec<Topic<'py>>, Vec<Part<'py>>)>> {
    let (mut found, mut parts) = (Vec::with_capacity(topics.len()), Vec::new());
    for topic in topics {
        let (name, batches) = (field(&topic, 0)?, field(&topic, 1)?);
        let batches = batches.cast::<PyList>()?;
        for batch in batches {
            let (index, records) = (field(&batch, 0)?, field(&batch, 1)?);
            let Some(partition) = known.get_item((&name, &index))? else {
                return Ok(None);
            };
            let Some(hot) = hot_of(&partition) else {
                return Ok(None);
            };
            let looked = hot.get().looking(py, || {
                let lent = Lent::of(&records)?;
                hot.get().facts(py, lent.slice(py), hot.get().now_ms(py)?)
            });
            let Ok(Some(facts)) = looked else {
                return Ok(None); // the twin meets what failed, too, and tells of it
            };
            parts.push(Part { partition, hot, records, index: index.extract()?, facts });
        }
        found.push((name.cast_into()?, batches.len()));
    }
    Ok(Some((found, parts)))
}

/// Append one. Where one before it was not taken, it is not: both may be of one partition. A failure is told to the
/// partition at once, since it may have stopped half-way.
fn append<'py>(py: Python<'py>, part: &Part<'py>, needs_isr: bool, before: &[Outcome<'py>]) -> PyResult<Outcome<'py>> {
    if !matches!(before.last(), None | Some(Outcome::Appended(..))) {
        return Ok(Outcome::Untaken);
    }
    let hot = part.hot.get();
    let taken = guarded(|| {
        let (lent, now_ms) = hot.looking(py, || Ok((Lent::of(&part.records)?, hot.now_ms(py)?)))?;
        hot.append_at(py, &part.records, &lent, needs_isr, part.facts, now_ms)
    });
    match taken {
        Ok(Some((base, end))) => Ok(Outcome::Appended(base, end)),
        Ok(None) => Ok(Outcome::Untaken),
        Err(error) => {
            let refusal = call!(part.partition, "on_native_failure", &part.records, error.into_value(py));
            Ok(if refusal.is_none() { Outcome::Untaken } else { Outcome::Refused(refusal) })
        }
    }
}

fn told<'py>(py: Python<'py>, parts: Vec<Part<'py>>, ends: Vec<Outcome<'py>>) -> PyResult<Bound<'py, PyAny>> {
    let told = PyList::empty(py);
    for (part, end) in parts.into_iter().zip(ends) {
        let hot = part.hot.get();
        let outcome = match end {
            Outcome::Appended(base, end) => hot.appended(py, base, end)?,
            Outcome::Untaken => py.None().into_bound(py),
            Outcome::Refused(refusal) => refusal,
        };
        told.append((part.partition, hot.walked_of(py, part.facts)?, outcome))?;
    }
    Ok(told.into_any())
}

/// `write_plain_answer` of `headrace.wire.plain_produce`.
struct Answer(Vec<u8>);

impl Answer {
    fn new(correlation_id: i32, topics: usize) -> Self {
        let mut made = Vec::with_capacity(256);
        made.extend([0; 4]);
        made.extend(correlation_id.to_be_bytes());
        made.push(0); // tags of the header
        made.push(u8::try_from(topics + 1).unwrap_or(0)); // at most 126
        Self(made)
    }

    fn begin(&mut self, topic: &Bound<'_, PyBytes>, count: usize) -> PyResult<()> {
        self.0.extend(topic.as_bytes());
        self.0.push(u8::try_from(count + 1)?);
        Ok(())
    }

    fn add(&mut self, index: i32, base_offset: i64, start_offset: i64) {
        self.0.extend(index.to_be_bytes());
        self.0.extend([0; 2]); // no error
        for number in [base_offset, NO_TIME, start_offset] {
            self.0.extend(number.to_be_bytes());
        }
        self.0.extend([1, 0, 0]); // no record errors, no message, tags
    }

    fn end(&mut self) {
        self.0.push(0);
    }

    fn frame(mut self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        self.0.extend([0; 5]); // throttle time, tags
        let size = i32::try_from(self.0.len() - 4)?;
        self.0[..4].copy_from_slice(&size.to_be_bytes());
        Ok(PyBytes::new(py, &self.0).into_any())
    }
}

impl HotPartition {
    /// `Partition.has_committed`, where no change of the ISR is proposed.
    fn has_committed(&self, py: Python<'_>, end: i64) -> PyResult<bool> {
        let (isr, least) = (self.isr(), self.settings(py)?.min_insync_replicas);
        Ok(end <= isr.high_watermark() && (least <= 1 || isr.in_sync().is_some_and(|copies| copies >= least)))
    }

    /// `Replica.start_offset`.
    pub fn start_offset(&self, py: Python<'_>) -> PyResult<i64> {
        match self.role().kept_from() {
            None => Ok(self.log().log_start_offset()),
            Some(_) => attribute!(self.parts.partition.bind(py), "start_offset").extract(),
        }
    }
}
