//! What the configs of a topic say about one batch. Read once from each settings object, which never changes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::attribute;

/// The part of `PartitionSettings` that plain batches need.
#[derive(Clone, Copy)]
pub struct Settings {
    pub max_message_bytes: i64,
    pub min_insync_replicas: i64,
    /// The codec in which batches are kept; none: each in its own.
    pub codec: Option<i16>,
    pub checks_uncompressed: bool,
    pub compact: bool,
    /// How far behind the broker's clock times may be, and how far ahead, in milliseconds; none: the log's own times.
    pub times: Option<(i64, i64)>,
}

impl Settings {
    fn read(settings: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (codec, times) = (attribute!(settings, "codec"), attribute!(settings, "times"));
        Ok(Self {
            max_message_bytes: attribute!(settings, "max_message_bytes").extract()?,
            min_insync_replicas: attribute!(settings, "min_insync_replicas").extract()?,
            codec: codec.extract()?,
            checks_uncompressed: attribute!(settings, "checks_uncompressed").extract()?,
            compact: attribute!(settings, "compact").extract()?,
            times: times.extract()?,
        })
    }

    /// Whether times from `oldest` to `newest` are surely within the bounds.
    pub fn allows(&self, oldest: i64, newest: i64, now_ms: i64) -> bool {
        self.times.is_none_or(|(before, after)| {
            now_ms.saturating_sub(before) <= oldest && newest <= now_ms.saturating_add(after)
        })
    }
}

/// The part of `LogConfig` that an append needs.
#[derive(Clone, Copy)]
pub struct LogConfig {
    pub fsync: bool,
    pub log_append_time: bool,
    pub segment_bytes: i64,
    pub segment_ms: i64,
    pub segment_jitter_ms: i64,
    pub segment_index_bytes: i64,
    pub index_interval_bytes: i64,
}

impl LogConfig {
    fn read(config: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            fsync: attribute!(config, "fsync").extract()?,
            log_append_time: attribute!(config, "log_append_time").extract()?,
            segment_bytes: attribute!(config, "segment_bytes").extract()?,
            segment_ms: attribute!(config, "segment_ms").extract()?,
            segment_jitter_ms: attribute!(config, "segment_jitter_ms").extract()?,
            segment_index_bytes: attribute!(config, "segment_index_bytes").extract()?,
            index_interval_bytes: attribute!(config, "index_interval_bytes").extract()?,
        })
    }
}

/// What was read last, with the object that it was read from.
pub struct Known<T>(Mutex<Option<(Py<PyAny>, T)>>);

impl<T: Copy> Known<T> {
    pub fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub fn of(&self, owner: &Bound<'_, PyAny>, read: fn(&Bound<'_, PyAny>) -> PyResult<T>) -> PyResult<T> {
        if let Some((of, found)) = self.lock().as_ref()
            && of.is(owner)
        {
            return Ok(*found);
        }
        let found = read(owner)?; // with the lock free: this runs Python
        let before = self.lock().replace((owner.clone().unbind(), found));
        drop(before);
        Ok(found)
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Py<PyAny>, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known<Settings> {
    pub fn settings(&self, settings: &Bound<'_, PyAny>) -> PyResult<Settings> {
        self.of(settings, Settings::read)
    }
}

impl Known<LogConfig> {
    pub fn config(&self, config: &Bound<'_, PyAny>) -> PyResult<LogConfig> {
        self.of(config, LogConfig::read)
    }
}
