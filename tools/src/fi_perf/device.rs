//! Memory of a device for buffers (`--device`): the driver API of `libcuda.so.1`, loaded when the
//! option asks for it.
use crate::failure::{Failure, Outcomes, fail};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::sync::Mutex;

/// CUresult.
type CuResult = c_int;
type DevicePtr = u64;
type Context = *mut c_void;

/// Defines a table of a library's functions, with a method `find` filling it.
macro_rules! calls {
    ($(#[$meta:meta])* struct $table:ident { $($field:ident: $name:literal $type:ty),+ $(,)? }) => {
        $(#[$meta])*
        struct $table { $($field: $type),+ }

        impl $table {
            /// Finds the functions of a loaded library.
            fn find(library: NonNull<c_void>) -> Outcomes<Self> {
                let find = |name: &CStr| {
                    // SAFETY: the library is loaded; the name is a C string.
                    let function = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
                    let missing = || Failure(format!("cuda: no {}", name.to_string_lossy()));
                    NonNull::new(function).ok_or_else(missing)
                };
                // SAFETY: the function of each name has this type, by the documentation of the
                // driver API.
                Ok(unsafe {
                    Self {
                        $($field: std::mem::transmute::<NonNull<c_void>, $type>(find($name)?)),+
                    }
                })
            }
        }
    };
}

calls! {
    /// Functions of the driver.
    struct Calls {
        init: c"cuInit" unsafe extern "C" fn(c_uint) -> CuResult,
        device_count: c"cuDeviceGetCount" unsafe extern "C" fn(*mut c_int) -> CuResult,
        device: c"cuDeviceGet" unsafe extern "C" fn(*mut c_int, c_int) -> CuResult,
        retain: c"cuDevicePrimaryCtxRetain" unsafe extern "C" fn(*mut Context, c_int) -> CuResult,
        set_current: c"cuCtxSetCurrent" unsafe extern "C" fn(Context) -> CuResult,
        alloc: c"cuMemAlloc_v2" unsafe extern "C" fn(*mut DevicePtr, usize) -> CuResult,
        free: c"cuMemFree_v2" unsafe extern "C" fn(DevicePtr) -> CuResult,
        set: c"cuMemsetD8_v2" unsafe extern "C" fn(DevicePtr, u8, usize) -> CuResult,
        to_host: c"cuMemcpyDtoH_v2" unsafe extern "C" fn(*mut c_void, DevicePtr, usize) -> CuResult,
        to_device: c"cuMemcpyHtoD_v2"
            unsafe extern "C" fn(DevicePtr, *const c_void, usize) -> CuResult,
        error_name: c"cuGetErrorName" unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult,
    }
}

/// CUDA device with its primary context.
pub(crate) struct Device {
    calls: Calls,
    context: Context,
    pub(crate) number: u32,
}

// SAFETY: a context of CUDA is usable in any thread.
unsafe impl Send for Device {}
// SAFETY: the functions of CUDA may be called by several threads at a time.
unsafe impl Sync for Device {}

impl Calls {
    /// Loads the driver. Fails with the reason of the loader.
    fn load() -> Outcomes<Self> {
        // SAFETY: the name is a C string; loading runs the code of the driver, as in any program
        // using it.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        let Some(library) = NonNull::new(library) else {
            // SAFETY: after a failed dlopen this is the text of the error.
            let text = unsafe { CStr::from_ptr(libc::dlerror()) };
            return fail(format!("cuda: {}", text.to_string_lossy()));
        };
        Self::find(library)
    }

    /// Converts a result of the driver to an error with the name of the call.
    fn check(&self, call: &str, result: CuResult) -> Outcomes {
        if result == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: the driver writes to the pointer; a name is a C string that stays.
        let name = unsafe {
            match (self.error_name)(result, &mut name) {
                0 if !name.is_null() => CStr::from_ptr(name).to_string_lossy().into_owned(),
                _ => format!("CUDA error {result}"),
            }
        };
        fail(format!("cuda: {call}: {name}"))
    }
}

/// Devices in use by their number; they stay.
static OPEN: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

impl Device {
    /// Returns the CUDA device with this number. Fails without the driver or the device.
    pub(crate) fn open(number: u32) -> Outcomes<&'static Self> {
        let mut open = OPEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(device) = open.iter().find(|device| device.number == number) {
            return Ok(device);
        }
        let calls = Calls::load()?;
        let (mut count, mut device, mut context) = (0, 0, ptr::null_mut());
        // SAFETY: the driver is initialized first; it writes to the numbers and to the pointer.
        unsafe {
            calls.check("cuInit", (calls.init)(0))?;
            calls.check("cuDeviceGetCount", (calls.device_count)(&mut count))?;
            if i64::from(number) >= i64::from(count) {
                return fail(format!("cuda: no device {number}; there are {count}"));
            }
            calls.check("cuDeviceGet", (calls.device)(&mut device, number as c_int))?;
            calls.check("cuDevicePrimaryCtxRetain", (calls.retain)(&mut context, device))?;
        }
        let device: &'static Self = Box::leak(Box::new(Self { calls, context, number }));
        open.push(device);
        Ok(device)
    }

    /// Makes the device's context the current one of this thread.
    fn enter(&self) -> Outcomes {
        // SAFETY: the context stays retained.
        self.calls.check("cuCtxSetCurrent", unsafe { (self.calls.set_current)(self.context) })
    }

    /// Allocates memory filled with zeroes.
    pub(crate) fn allocate(&self, length: usize) -> Outcomes<NonNull<u8>> {
        self.enter()?;
        let mut address = 0;
        // SAFETY: the driver writes to the number; the memory set is that of the allocation.
        unsafe {
            self.calls.check("cuMemAlloc", (self.calls.alloc)(&mut address, length))?;
            self.calls.check("cuMemsetD8", (self.calls.set)(address, 0, length))?;
        }
        match NonNull::new(ptr::with_exposed_provenance_mut(address as usize)) {
            Some(base) => Ok(base),
            None => fail("cuda: cuMemAlloc: no memory"),
        }
    }

    /// Frees memory of [`allocate`](Self::allocate).
    pub(crate) fn free(&self, base: NonNull<u8>) {
        let freed = self.enter().and_then(|()| {
            // SAFETY: the driver answers with an error for other addresses.
            let freed = unsafe { (self.calls.free)(base.as_ptr() as DevicePtr) };
            self.calls.check("cuMemFree", freed)
        });
        if let Err(failure) = freed {
            eprintln!("fi_perf: {failure}");
        }
    }

    /// Copies bytes of the device to the host.
    pub(crate) fn read(&self, from: *mut u8, bytes: &mut [u8]) -> Outcomes {
        self.enter()?;
        let (to, length) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: the destination has so many bytes; the driver checks the device's addresses.
        let copied = unsafe { (self.calls.to_host)(to, from as DevicePtr, length) };
        self.calls.check("cuMemcpyDtoH", copied)
    }

    /// Copies bytes of the host to the device.
    pub(crate) fn write(&self, to: *mut u8, bytes: &[u8]) -> Outcomes {
        self.enter()?;
        let (from, length) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the source has so many bytes; the driver checks the device's addresses.
        let copied = unsafe { (self.calls.to_device)(to as DevicePtr, from, length) };
        self.calls.check("cuMemcpyHtoD", copied)
    }
}
