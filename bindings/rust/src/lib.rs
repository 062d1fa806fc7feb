//! Runs models that Weft compiled: by libweft from archives (`weft compile`), or from a library that `weft export`
//! wrote.
//!
//! ```no_run
//! use weft::{Library, Options, TensorView};
//!
//! # fn main() -> Result<(), weft::Error> {
//! // SAFETY: libraries and archives hold machine code, which runs with the rights of the process.
//! let program = unsafe { Library::load("libweft.so")?.open("model.weft", &Options::default())? };
//! let x = vec![0f32; 8 * 64];
//! let results = program.run(&[TensorView::new(&x, &[8, 64])])?;
//! let y: &[f32] = results[0].as_slice()?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Program`] is `Send` and `Sync`: threads share it by reference or [`std::sync::Arc`].

#![warn(missing_docs, unsafe_op_in_unsafe_fn)]

mod ffi;
mod tensor;

use std::ffi::{c_void, CStr, CString};
use std::fmt;
use std::path::Path;
use std::ptr::{null, null_mut};

use ffi::{Functions, RawError, RawOptions, RawProgram, RawProgramInfo, RawTensor, RawValueInfo};
pub use tensor::{Bf16, DType, Element, Tensor, TensorView, TensorViewMut, F16};

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A number of tensors, or a path where none is taken.
    Argument,
    /// An input of another dtype, rank or size.
    Input,
    /// Storage for an output that does not fit.
    Output,
    /// No memory.
    Memory,
    /// A file cannot be read, or a library loaded.
    File,
    /// No archive, or one that is damaged, cut short, or not the expected one.
    Archive,
    /// Written by another version of Weft.
    Version,
    /// Compiled for another architecture, or a processor with more instructions.
    Machine,
    /// A step of the model runs where Python is: strings, pictures, other devices.
    Unsupported,
    /// The run itself failed: a kernel, a condition on data, sizes beyond 64 bits.
    Run,
    /// The system refuses: executable memory is forbidden, for example.
    System,
    /// A code that this crate does not know.
    Other(i32),
}

impl ErrorKind {
    fn from_code(code: i32) -> Self {
        match code {
            1 => Self::Argument,
            2 => Self::Input,
            3 => Self::Output,
            4 => Self::Memory,
            5 => Self::File,
            6 => Self::Archive,
            7 => Self::Version,
            8 => Self::Machine,
            9 => Self::Unsupported,
            10 => Self::Run,
            11 => Self::System,
            other => Self::Other(other),
        }
    }
}

/// What went wrong. Its text says what, then lines `where: `, `why: ` and `hint: ` as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    fn new(kind: ErrorKind, message: String) -> Self {
        Error { kind, message }
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// How a program is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Threads of a run, the caller's included; 0: `WEFT_THREADS`, the model's own, or as many as the process may use.
    pub threads: u32,
    /// The expected hash of the archive, 64 hexadecimal digits: another file is refused.
    pub sha256: Option<String>,
}

/// What an input or output is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its name.
    pub name: String,
    /// Its element type by name: `"float32"`.
    pub dtype_name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its sizes; `None` for one that is open.
    pub shape: Vec<Option<usize>>,
}

/// libweft, or a library that `weft export` wrote. It stays loaded until the process ends.
#[derive(Clone, Copy)]
pub struct Library {
    functions: Functions,
}

impl Library {
    /// Loads the library at `path`.
    ///
    /// # Errors
    /// It cannot be loaded or is no library of Weft ([`ErrorKind::File`]), or is older than this crate
    /// ([`ErrorKind::Version`]).
    ///
    /// # Safety
    /// The library runs code in this process.
    pub unsafe fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Ok(Library { functions: ffi::load(path.as_ref(), None)? })
    }

    /// As [`Library::load`], for one that was exported with `--prefix`.
    ///
    /// # Errors
    /// As [`Library::load`].
    ///
    /// # Safety
    /// As [`Library::load`].
    pub unsafe fn load_with_prefix(path: impl AsRef<Path>, prefix: &str) -> Result<Self, Error> {
        Ok(Library { functions: ffi::load(path.as_ref(), Some(prefix))? })
    }

    /// What the program is linked with: libweft, or an object or library of `weft export`.
    #[cfg(feature = "linked")]
    pub fn linked() -> Self {
        Library { functions: ffi::linked::FUNCTIONS }
    }

    /// Opens the archive at `path`, by libweft.
    ///
    /// # Errors
    /// The file cannot be read ([`ErrorKind::File`]), is no archive or not the expected one ([`ErrorKind::Archive`]), or
    /// is not for this machine ([`ErrorKind::Machine`]), library ([`ErrorKind::Version`]) or runtime
    /// ([`ErrorKind::Unsupported`]).
    ///
    /// # Safety
    /// An archive holds machine code, which runs in this process: open only those that you trust.
    pub unsafe fn open(&self, path: impl AsRef<Path>, options: &Options) -> Result<Program, Error> {
        let path = path.as_ref();
        let name = path.to_str().and_then(|p| CString::new(p).ok()).ok_or_else(|| {
            Error::new(ErrorKind::Argument, format!("the path '{}' is no text without zeros", path.display()))
        })?;
        self.opened(options, Vec::new(), |f, o, p, e| unsafe { (f.open)(name.as_ptr(), o, p, e) })
    }

    /// Opens the model inside of an export.
    ///
    /// # Errors
    /// The library is libweft ([`ErrorKind::Argument`]), or the model is not for this processor ([`ErrorKind::Machine`]).
    pub fn open_inside(&self, options: &Options) -> Result<Program, Error> {
        // SAFETY: the code is that of the library, which was loaded on the word of the caller.
        self.opened(options, Vec::new(), |f, o, p, e| unsafe { (f.open)(null(), o, p, e) })
    }

    /// Opens an archive that lies in memory, by libweft. It is copied.
    ///
    /// # Errors
    /// As [`Library::open`].
    ///
    /// # Safety
    /// As [`Library::open`].
    pub unsafe fn open_bytes(&self, archive: &[u8], options: &Options) -> Result<Program, Error> {
        let mut copy = vec![tensor::Line([0; 64]); archive.len().div_ceil(64).max(1)];
        // SAFETY: the copy has at least as many bytes.
        unsafe { copy.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(archive.as_ptr(), archive.len()) };
        let data = copy.as_ptr().cast::<c_void>();
        self.opened(options, copy, |f, o, p, e| unsafe { (f.open_memory)(data, archive.len(), o, p, e) })
    }

    fn opened(
        &self,
        options: &Options,
        archive: Vec<tensor::Line>,
        open: impl FnOnce(&Functions, *const RawOptions, *mut *mut RawProgram, *mut RawError) -> i32,
    ) -> Result<Program, Error> {
        let wrong = |what: &str| Error::new(ErrorKind::Argument, what.to_string());
        let sha256 = options.sha256.as_deref().map(CString::new).transpose().map_err(|_| wrong("sha256 has a zero"))?;
        let raw = RawOptions {
            size: size_of::<RawOptions>() as u32,
            threads: options.threads.try_into().map_err(|_| wrong("too many threads are asked for"))?,
            sha256: sha256.as_ref().map_or(null(), |s| s.as_ptr()),
        };
        let mut handle = null_mut();
        RawError::of(|error| open(&self.functions, &raw, &mut handle, error))?;
        let mut program = Program {
            functions: self.functions,
            handle,
            _archive: archive,
            name: String::new(),
            target: String::new(),
            version: String::new(),
            threads: 1,
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        program.describe()?;
        Ok(program)
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

/// A loaded model. Several threads may run it at once.
pub struct Program {
    functions: Functions,
    handle: *mut RawProgram,
    _archive: Vec<tensor::Line>, // used where it lies
    name: String,
    target: String,
    version: String,
    threads: u32,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

// SAFETY: weft.h: every function may be called by several threads at once, also for one program; weft_close is called by
// drop alone, when nobody else has the program.
unsafe impl Send for Program {}
unsafe impl Sync for Program {}

impl Program {
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it was compiled for.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The version of Weft by which it was compiled.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Threads of a run.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// What it takes, in order.
    pub fn inputs(&self) -> &[Value] {
        &self.inputs
    }

    /// What it gives, in order.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// Runs the model on inputs in the order of [`Program::inputs`]; results are in the order of [`Program::outputs`].
    ///
    /// # Errors
    /// Another number of inputs ([`ErrorKind::Argument`]), an input that does not fit ([`ErrorKind::Input`]), or a run
    /// that failed.
    pub fn run(&self, inputs: &[TensorView<'_>]) -> Result<Vec<Tensor>, Error> {
        let mut results: Vec<Tensor> =
            self.outputs.iter().map(|o| Tensor::empty(o.shape.len(), self.functions.release)).collect();
        let mut raw: Vec<RawTensor> = results.iter_mut().map(Tensor::raw).collect();
        self.call(inputs, &mut raw)?;
        for (result, raw) in results.iter_mut().zip(raw) {
            result.fill(raw);
        }
        Ok(results)
    }

    /// Runs the model, and writes results to memory of the caller, in the order of [`Program::outputs`].
    ///
    /// # Errors
    /// As [`Program::run`]; storage that does not fit ([`ErrorKind::Output`]).
    pub fn run_into(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), Error> {
        self.same_count(outputs.len(), self.outputs.len(), "outputs")?;
        let mut raw: Vec<RawTensor> = outputs.iter_mut().map(TensorViewMut::raw).collect();
        self.call(inputs, &mut raw)
    }

    fn call(&self, inputs: &[TensorView<'_>], outputs: &mut [RawTensor]) -> Result<(), Error> {
        self.same_count(inputs.len(), self.inputs.len(), "inputs")?;
        for view in inputs {
            view.check()?;
        }
        let raw: Vec<RawTensor> = inputs.iter().map(TensorView::raw).collect();
        let given: Vec<*const RawTensor> = raw.iter().map(|t| t as *const RawTensor).collect();
        let taken: Vec<*mut RawTensor> = outputs.iter_mut().map(|t| t as *mut RawTensor).collect();
        // SAFETY: as many tensors as the program has, whose memory the views borrow until the end of this function and
        // has the sizes that they say.
        RawError::of(|error| unsafe { (self.functions.run)(self.handle, given.as_ptr(), taken.as_ptr(), error) })
    }

    fn same_count(&self, given: usize, wanted: usize, what: &str) -> Result<(), Error> {
        if given == wanted {
            return Ok(());
        }
        let what = format!("'{}' has {wanted} {what}, {given} are given", self.name);
        Err(Error::new(ErrorKind::Argument, what))
    }

    fn describe(&mut self) -> Result<(), Error> {
        let mut info = RawProgramInfo {
            size: size_of::<RawProgramInfo>() as u32,
            inputs: 0,
            outputs: 0,
            threads: 0,
            name: null(),
            target: null(),
            version: null(),
        };
        // SAFETY: pointers of weft_describe are valid until the program is closed.
        unsafe {
            RawError::of(|error| (self.functions.describe)(self.handle, &mut info, error))?;
            self.name = text(info.name);
            self.target = text(info.target);
            self.version = text(info.version);
        }
        self.threads = info.threads.try_into().unwrap_or(1);
        self.inputs = (0..info.inputs).map(|i| self.value(self.functions.input, i)).collect::<Result<_, _>>()?;
        self.outputs = (0..info.outputs).map(|i| self.value(self.functions.output, i)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn value(
        &self,
        describe: unsafe extern "C" fn(*const RawProgram, i32, *mut RawValueInfo, *mut RawError) -> i32,
        index: i32,
    ) -> Result<Value, Error> {
        let mut info = RawValueInfo {
            size: size_of::<RawValueInfo>() as u32,
            ndim: 0,
            code: 0,
            bits: 0,
            lanes: 0,
            name: null(),
            dtype: null(),
            shape: null(),
        };
        // SAFETY: pointers of weft_input and weft_output are valid until the program is closed; `shape` has `ndim` sizes.
        unsafe {
            RawError::of(|error| describe(self.handle, index, &mut info, error))?;
            let sizes: &[i64] =
                if info.ndim == 0 { &[] } else { std::slice::from_raw_parts(info.shape, info.ndim as usize) };
            Ok(Value {
                name: text(info.name),
                dtype_name: text(info.dtype),
                dtype: DType { code: info.code, bits: info.bits },
                shape: sizes.iter().map(|&n| usize::try_from(n).ok()).collect(),
            })
        }
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("name", &self.name).field("target", &self.target).finish_non_exhaustive()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: nobody else has the program.
        unsafe { (self.functions.close)(self.handle) }
    }
}

unsafe fn text(at: *const std::ffi::c_char) -> String {
    // SAFETY: the caller has a string that ends with 0.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}
