//! The declarations of weft.h, and its functions in a library that is loaded by its path.

use std::ffi::{c_char, c_void, CStr, CString};
use std::path::Path;

use crate::{Error, ErrorKind};

pub const API_VERSION: i32 = 1;

#[repr(C)]
pub struct RawError {
    pub size: u32,
    pub code: i32,
    pub message: [u8; 504],
}

impl RawError {
    /// Calls a function of weft.h; what it wrote, if it failed.
    pub fn of(call: impl FnOnce(*mut RawError) -> i32) -> Result<(), Error> {
        let mut error = RawError { size: size_of::<Self>() as u32, code: 0, message: [0; 504] };
        let result = call(&mut error);
        if result == 0 {
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(&error.message).unwrap_or_default();
        Err(Error::new(ErrorKind::from_code(result), text.to_string_lossy().into_owned()))
    }
}

#[repr(C)]
pub struct RawTensor {
    pub data: *mut c_void,
    pub device_type: i32,
    pub device_id: i32,
    pub ndim: i32,
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct RawOptions {
    pub size: u32,
    pub threads: i32,
    pub sha256: *const c_char,
}

#[repr(C)]
pub struct RawProgramInfo {
    pub size: u32,
    pub inputs: i32,
    pub outputs: i32,
    pub threads: i32,
    pub name: *const c_char,
    pub target: *const c_char,
    pub version: *const c_char,
}

#[repr(C)]
pub struct RawValueInfo {
    pub size: u32,
    pub ndim: i32,
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
    pub name: *const c_char,
    pub dtype: *const c_char,
    pub shape: *const i64,
}

#[repr(C)]
pub struct RawProgram {
    _private: [u8; 0],
}

type ApiVersion = unsafe extern "C" fn() -> i32;
type Open = unsafe extern "C" fn(*const c_char, *const RawOptions, *mut *mut RawProgram, *mut RawError) -> i32;
type OpenMemory =
    unsafe extern "C" fn(*const c_void, usize, *const RawOptions, *mut *mut RawProgram, *mut RawError) -> i32;
type Close = unsafe extern "C" fn(*mut RawProgram);
type Describe = unsafe extern "C" fn(*const RawProgram, *mut RawProgramInfo, *mut RawError) -> i32;
type DescribeValue = unsafe extern "C" fn(*const RawProgram, i32, *mut RawValueInfo, *mut RawError) -> i32;
type Run = unsafe extern "C" fn(*mut RawProgram, *const *const RawTensor, *const *mut RawTensor, *mut RawError) -> i32;
type Release = unsafe extern "C" fn(*mut RawTensor);

/// The functions of weft.h. A library is never unloaded: its worker threads run its code.
#[derive(Clone, Copy)]
pub struct Functions {
    pub open: Open,
    pub open_memory: OpenMemory,
    pub close: Close,
    pub describe: Describe,
    pub input: DescribeValue,
    pub output: DescribeValue,
    pub run: Run,
    pub release: Release,
}

#[cfg(feature = "linked")]
pub mod linked {
    use super::*;

    unsafe extern "C" {
        fn weft_open(
            path: *const c_char,
            options: *const RawOptions,
            program: *mut *mut RawProgram,
            error: *mut RawError,
        ) -> i32;
        fn weft_open_memory(
            data: *const c_void,
            bytes: usize,
            options: *const RawOptions,
            program: *mut *mut RawProgram,
            error: *mut RawError,
        ) -> i32;
        fn weft_close(program: *mut RawProgram);
        fn weft_describe(program: *const RawProgram, info: *mut RawProgramInfo, error: *mut RawError) -> i32;
        fn weft_input(program: *const RawProgram, index: i32, info: *mut RawValueInfo, error: *mut RawError) -> i32;
        fn weft_output(program: *const RawProgram, index: i32, info: *mut RawValueInfo, error: *mut RawError) -> i32;
        fn weft_run(
            program: *mut RawProgram,
            inputs: *const *const RawTensor,
            outputs: *const *mut RawTensor,
            error: *mut RawError,
        ) -> i32;
        fn weft_release(output: *mut RawTensor);
    }

    pub const FUNCTIONS: Functions = Functions {
        open: weft_open,
        open_memory: weft_open_memory,
        close: weft_close,
        describe: weft_describe,
        input: weft_input,
        output: weft_output,
        run: weft_run,
        release: weft_release,
    };
}

pub fn load(path: &Path, prefix: Option<&str>) -> Result<Functions, Error> {
    let handle = system::open(path).map_err(|reason| {
        let why = if reason.is_empty() { String::new() } else { format!("\nwhy: {reason}") };
        Error::new(ErrorKind::File, format!("the library '{}' cannot be loaded{why}", path.display()))
    })?;
    let find = |name: &str| -> Result<*mut c_void, Error> {
        let whole = prefix.map_or_else(|| name.to_string(), |p| format!("{p}_{name}"));
        let symbol = CString::new(whole.clone()).unwrap_or_default();
        let found = system::find(handle, &symbol);
        if found.is_null() {
            return Err(Error::new(
                ErrorKind::File,
                format!(
                    "'{}' is no library of Weft\nwhy: it has no function '{whole}'\n\
                     hint: give the prefix that it was exported with, if it has one",
                    path.display()
                ),
            ));
        }
        Ok(found)
    };
    // SAFETY: functions of these names have the types of weft.h, which is what `weft_api_version` says.
    unsafe {
        let version: ApiVersion = std::mem::transmute(find("weft_api_version")?);
        let functions = Functions {
            open: std::mem::transmute::<*mut c_void, Open>(find("weft_open")?),
            open_memory: std::mem::transmute::<*mut c_void, OpenMemory>(find("weft_open_memory")?),
            close: std::mem::transmute::<*mut c_void, Close>(find("weft_close")?),
            describe: std::mem::transmute::<*mut c_void, Describe>(find("weft_describe")?),
            input: std::mem::transmute::<*mut c_void, DescribeValue>(find("weft_input")?),
            output: std::mem::transmute::<*mut c_void, DescribeValue>(find("weft_output")?),
            run: std::mem::transmute::<*mut c_void, Run>(find("weft_run")?),
            release: std::mem::transmute::<*mut c_void, Release>(find("weft_release")?),
        };
        if version() < API_VERSION {
            let what = format!("the library '{}' is older than this crate", path.display());
            return Err(Error::new(ErrorKind::Version, what));
        }
        Ok(functions)
    }
}

#[cfg(unix)]
mod system {
    use std::ffi::{c_char, c_int, c_void, CStr, CString};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    #[cfg_attr(any(target_os = "linux", target_os = "android"), link(name = "dl"))]
    unsafe extern "C" {
        fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
        fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
        fn dlerror() -> *const c_char;
    }

    const RTLD_NOW: c_int = 2; // of Linux, Android, macOS and the BSDs; local is the default but on macOS
    #[cfg(target_vendor = "apple")]
    const RTLD_LOCAL: c_int = 4;
    #[cfg(not(target_vendor = "apple"))]
    const RTLD_LOCAL: c_int = 0;

    pub fn open(path: &Path) -> Result<*mut c_void, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: a string that ends with 0; dlerror gives such a one, or null.
        unsafe {
            let handle = dlopen(name.as_ptr(), RTLD_NOW | RTLD_LOCAL);
            if !handle.is_null() {
                return Ok(handle);
            }
            let reason = dlerror();
            Err(if reason.is_null() { String::new() } else { CStr::from_ptr(reason).to_string_lossy().into_owned() })
        }
    }

    pub fn find(handle: *mut c_void, name: &CStr) -> *mut c_void {
        // SAFETY: a handle of dlopen that is never closed.
        unsafe { dlsym(handle, name.as_ptr()) }
    }
}

#[cfg(windows)]
mod system {
    use std::ffi::{c_char, c_void, CStr};
    use std::os::windows::ffi::OsStrExt;
    use std::path::Path;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn LoadLibraryW(path: *const u16) -> *mut c_void;
        fn GetProcAddress(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    }

    pub fn open(path: &Path) -> Result<*mut c_void, String> {
        let wide: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
        // SAFETY: a string that ends with 0.
        let handle = unsafe { LoadLibraryW(wide.as_ptr()) };
        if handle.is_null() {
            return Err(std::io::Error::last_os_error().to_string());
        }
        Ok(handle)
    }

    pub fn find(handle: *mut c_void, name: &CStr) -> *mut c_void {
        // SAFETY: a handle of LoadLibraryW that is never freed.
        unsafe { GetProcAddress(handle, name.as_ptr()) }
    }
}
