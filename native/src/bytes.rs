//! Bytes that Python lends for the length of one call.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

/// A buffer of bytes in one piece, held for as long as this lives.
pub struct Lent(PyBuffer<u8>);

impl Lent {
    /// Raises `BufferError` where `owner` has no bytes in one piece.
    pub fn of(owner: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(owner)?;
        if buffer.is_c_contiguous() {
            Ok(Self(buffer))
        } else {
            Err(pyo3::exceptions::PyBufferError::new_err("the bytes lie apart"))
        }
    }

    /// The bytes. The token shows that the interpreter's lock is held, which nothing here gives up.
    #[allow(unsafe_code)]
    pub fn slice<'a>(&'a self, _: Python<'a>) -> &'a [u8] {
        let size = self.0.len_bytes();
        if size == 0 {
            return &[];
        }
        // SAFETY: the buffer is held by `self`, lies in one piece of `size` bytes, and is not null, for it has some.
        // Whoever writes to it needs the interpreter's lock, which this thread has until the slice is gone.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), size) }
    }
}
