//! Tensors: views of the caller's memory, and results with memory of their own.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::null_mut;

use crate::ffi::RawTensor;
use crate::{Error, ErrorKind};

/// An element type, as DLPack has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DType {
    /// DLPack's type code: 0 signed, 1 unsigned, 2 float, 4 bfloat16, 6 bool, and others.
    pub code: u8,
    /// Bits of an element.
    pub bits: u8,
}

impl DType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        usize::from(self.bits / 8).max(1)
    }
}

/// An element of 16-bit floating point, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// An element of bfloat16, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is an element type.
pub trait Element: Copy + sealed::Sealed + 'static {
    /// The element type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty: $code:literal, $bits:literal;)*) => {
        $(impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType { code: $code, bits: $bits };
        })*
    };
}

elements! {
    i8: 0, 8; i16: 0, 16; i32: 0, 32; i64: 0, 64;
    u8: 1, 8; u16: 1, 16; u32: 1, 32; u64: 1, 64;
    F16: 2, 16; f32: 2, 32; f64: 2, 64; Bf16: 4, 16; bool: 6, 8;
}

/// Memory at multiples of 64 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [u8; 64]);

fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

fn mismatch(shape: &[usize], length: usize) -> Error {
    Error::new(ErrorKind::Argument, format!("a tensor of sizes {shape:?} is given {length} elements"))
}

fn sizes(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&d| i64::try_from(d).unwrap_or(-1)).collect()
}

fn raw(data: *mut c_void, dtype: DType, shape: *mut i64, rank: usize) -> RawTensor {
    RawTensor {
        data,
        device_type: 1,
        device_id: 0,
        ndim: rank as i32,
        code: dtype.code,
        bits: dtype.bits,
        lanes: 1,
        shape,
        strides: null_mut(),
        byte_offset: 0,
    }
}

/// An input: elements of the caller, row by row.
pub struct TensorView<'a> {
    data: *const c_void,
    length: usize,
    dtype: DType,
    shape: Vec<usize>,
    sizes: Vec<i64>,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view is a shared borrow of plain numbers.
unsafe impl Send for TensorView<'_> {}
unsafe impl Sync for TensorView<'_> {}

impl<'a> TensorView<'a> {
    /// A tensor of `data`, which are as many elements as `shape` has; a run refuses others.
    pub fn new<T: Element>(data: &'a [T], shape: &[usize]) -> Self {
        Self::of(data.as_ptr().cast(), data.len(), T::DTYPE, shape)
    }

    /// A tensor of elements of any type, as bytes in the order of the machine. They must lie at a multiple of the
    /// element's size, or a run refuses them.
    pub fn from_bytes(data: &'a [u8], dtype: DType, shape: &[usize]) -> Self {
        Self::of(data.as_ptr().cast(), data.len() / dtype.bytes(), dtype, shape)
    }

    fn of(data: *const c_void, length: usize, dtype: DType, shape: &[usize]) -> Self {
        TensorView { data, length, dtype, shape: shape.to_vec(), sizes: sizes(shape), memory: PhantomData }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if count(&self.shape) == Some(self.length) {
            return Ok(());
        }
        Err(mismatch(&self.shape, self.length))
    }

    pub(crate) fn raw(&self) -> RawTensor {
        // weft_run reads inputs and their sizes, and does not write them.
        raw(self.data.cast_mut(), self.dtype, self.sizes.as_ptr().cast_mut(), self.sizes.len())
    }
}

/// Storage of the caller for an output, row by row.
pub struct TensorViewMut<'a> {
    data: *mut c_void,
    dtype: DType,
    sizes: Vec<i64>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a view is a borrow of plain numbers.
unsafe impl Send for TensorViewMut<'_> {}
unsafe impl Sync for TensorViewMut<'_> {}

impl<'a> TensorViewMut<'a> {
    /// Storage for a result of sizes `shape`.
    ///
    /// # Errors
    /// `data` is another number of elements ([`ErrorKind::Argument`]).
    pub fn new<T: Element>(data: &'a mut [T], shape: &[usize]) -> Result<Self, Error> {
        if count(shape) != Some(data.len()) {
            return Err(mismatch(shape, data.len()));
        }
        Ok(TensorViewMut { data: data.as_mut_ptr().cast(), dtype: T::DTYPE, sizes: sizes(shape), memory: PhantomData })
    }

    pub(crate) fn raw(&mut self) -> RawTensor {
        raw(self.data, self.dtype, self.sizes.as_mut_ptr(), self.sizes.len())
    }
}

/// A result, with memory of its own. It may outlive its program.
pub struct Tensor {
    data: *mut c_void,
    dtype: DType,
    sizes: Vec<i64>,
    release: unsafe extern "C" fn(*mut RawTensor),
}

// SAFETY: it owns its memory, which any thread may read and give back.
unsafe impl Send for Tensor {}
unsafe impl Sync for Tensor {}

impl Tensor {
    pub(crate) fn empty(rank: usize, release: unsafe extern "C" fn(*mut RawTensor)) -> Self {
        Tensor { data: null_mut(), dtype: DType { code: 0, bits: 8 }, sizes: vec![0; rank], release }
    }

    pub(crate) fn raw(&mut self) -> RawTensor {
        raw(self.data, self.dtype, self.sizes.as_mut_ptr(), self.sizes.len())
    }

    pub(crate) fn fill(&mut self, raw: RawTensor) {
        self.data = raw.data;
        self.dtype = DType { code: raw.code, bits: raw.bits };
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its sizes.
    pub fn shape(&self) -> Vec<usize> {
        self.sizes.iter().map(|&n| n as usize).collect()
    }

    /// The number of its elements.
    pub fn len(&self) -> usize {
        self.sizes.iter().map(|&n| n as usize).product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All elements, row by row.
    ///
    /// # Errors
    /// They are of another type ([`ErrorKind::Output`]).
    pub fn as_slice<T: Element>(&self) -> Result<&[T], Error> {
        if self.dtype != T::DTYPE {
            let what = format!("the result has elements of {:?}, not of {:?}", self.dtype, T::DTYPE);
            return Err(Error::new(ErrorKind::Output, what));
        }
        // SAFETY: weft_run gives memory of that many elements at a multiple of 64 bytes.
        Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), self.len()) })
    }

    /// All elements as bytes in the order of the machine.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: as for `as_slice`.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.len() * self.dtype.bytes()) }
    }

    /// As an input of another run.
    pub fn view(&self) -> TensorView<'_> {
        TensorView::of(self.data, self.len(), self.dtype, &self.shape())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor").field("dtype", &self.dtype).field("shape", &self.sizes).finish_non_exhaustive()
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if !self.data.is_null() {
            let mut raw = self.raw();
            // SAFETY: memory of weft_run that nobody else has.
            unsafe { (self.release)(&mut raw) }
        }
    }
}
