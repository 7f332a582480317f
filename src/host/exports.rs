//! What Envoy calls: the proxy-wasm ABI 0.2.1, handed to the contexts.
//!
//! Owns the contexts by their ids. The SDK's own dispatcher panics on an id or token that it does
//! not know; here such a call does nothing.
//! Invariant: no borrow of a map is held while a context runs, so whatever Envoy calls in the
//! middle of a host call finds them free.
//! Cost: one look-up per callback.

use super::abi;
use super::root::Root;
use super::stream::Stream;
use core::cell::RefCell;
use hashbrown::HashMap;
use std::rc::Rc;

/// What Envoy shall do with what it just showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// Pass it on.
    Continue = 0,
    /// Keep it: headers, or a body that goes no further.
    Pause = 1,
    /// Keep this of the body, and read no more when there is too much of it; Envoy would answer
    /// 413 to `Pause`. The next piece is shown without this one.
    Hold = 2,
}

type Shared<T> = Rc<RefCell<T>>;

thread_local! {
    /// A few at most.
    static ROOTS: RefCell<Vec<(u32, Shared<Root>)>> = const { RefCell::new(Vec::new()) };
    static STREAMS: RefCell<HashMap<u32, Shared<Stream>>> = RefCell::new(HashMap::new());
}

fn root<T>(id: u32, call: impl FnOnce(&mut Root) -> T) -> Option<T> {
    let root = ROOTS.with(|roots| {
        let roots = roots.try_borrow().ok()?;
        let found = roots.iter().find(|(known, _)| *known == id)?;
        Some(found.1.clone())
    })?;
    let mut root = root.try_borrow_mut().ok()?;
    Some(call(&mut root))
}

fn stream<T>(id: u32, call: impl FnOnce(&mut Stream) -> T) -> Option<T> {
    let stream = STREAMS.with(|streams| streams.try_borrow().ok()?.get(&id).cloned())?;
    let mut stream = stream.try_borrow_mut().ok()?;
    Some(call(&mut stream))
}

fn action(id: u32, call: impl FnOnce(&mut Stream) -> Action) -> Action {
    stream(id, call).unwrap_or(Action::Continue)
}

extern "C" {
    fn __wasm_call_ctors();
}

#[no_mangle]
extern "C" fn _initialize() {
    // SAFETY: Envoy calls this once, before anything else.
    unsafe { __wasm_call_ctors() };
}

#[no_mangle]
extern "C" fn proxy_abi_version_0_2_1() {}

/// Memory that the host fills and hands over; `abi::taken` owns it from then on.
#[no_mangle]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    let mut memory: Vec<u8> = Vec::new();
    // Without memory the host call fails, and is treated as such.
    if memory.try_reserve_exact(size).is_err() {
        return core::ptr::null_mut();
    }
    memory.resize(size, 0);
    Box::into_raw(memory.into_boxed_slice()).cast()
}

#[no_mangle]
extern "C" fn proxy_on_vm_start(_root: u32, _configuration_size: usize) -> bool {
    true
}

#[no_mangle]
extern "C" fn proxy_on_context_create(id: u32, root_id: u32) {
    if root_id == 0 {
        let new = Rc::new(RefCell::new(Root::default()));
        ROOTS.with(|roots| {
            if let Ok(mut roots) = roots.try_borrow_mut() {
                roots.push((id, new));
            }
        });
    } else if let Some(new) = root(root_id, |root| root.stream()) {
        let new = Rc::new(RefCell::new(new));
        STREAMS.with(|streams| streams.try_borrow_mut().map(|mut s| s.insert(id, new)).ok());
    }
}

#[no_mangle]
extern "C" fn proxy_on_configure(id: u32, size: usize) -> bool {
    root(id, |root| root.on_configure(size)).unwrap_or(false)
}

#[no_mangle]
extern "C" fn proxy_on_tick(id: u32) {
    root(id, Root::on_tick);
    let mut waiting = Vec::new();
    STREAMS.with(|streams| {
        if let Ok(streams) = streams.try_borrow() {
            for (id, stream) in streams.iter() {
                if stream.try_borrow().is_ok_and(|stream| stream.waits()) {
                    waiting.push(*id);
                }
            }
        }
    });
    for id in waiting {
        abi::act_for(id);
        stream(id, Stream::on_tick);
    }
}

#[no_mangle]
extern "C" fn proxy_on_request_headers(id: u32, headers: usize, end: bool) -> Action {
    action(id, |stream| stream.on_http_request_headers(headers, end))
}

#[no_mangle]
extern "C" fn proxy_on_request_body(id: u32, size: usize, end: bool) -> Action {
    action(id, |stream| stream.on_http_request_body(size, end))
}

#[no_mangle]
extern "C" fn proxy_on_request_trailers(id: u32, trailers: usize) -> Action {
    action(id, |stream| stream.on_http_request_trailers(trailers))
}

#[no_mangle]
extern "C" fn proxy_on_response_headers(id: u32, headers: usize, end: bool) -> Action {
    action(id, |stream| stream.on_http_response_headers(headers, end))
}

#[no_mangle]
extern "C" fn proxy_on_response_body(id: u32, size: usize, end: bool) -> Action {
    action(id, |stream| stream.on_http_response_body(size, end))
}

#[no_mangle]
extern "C" fn proxy_on_response_trailers(id: u32, trailers: usize) -> Action {
    action(id, |stream| stream.on_http_response_trailers(trailers))
}

#[no_mangle]
extern "C" fn proxy_on_http_call_response(
    id: u32,
    token: u32,
    headers: usize,
    size: usize,
    _trailers: usize,
) {
    root(id, |root| root.on_http_call_response(token, headers, size));
}

#[no_mangle]
extern "C" fn proxy_on_log(id: u32) {
    stream(id, Stream::on_log);
}

#[no_mangle]
extern "C" fn proxy_on_done(id: u32) -> bool {
    root(id, Root::on_done).unwrap_or(true)
}

#[no_mangle]
extern "C" fn proxy_on_delete(id: u32) {
    // A stream that was never logged has ended all the same.
    stream(id, Stream::on_log);
    STREAMS.with(|streams| streams.try_borrow_mut().map(|mut s| s.remove(&id)).ok());
    ROOTS.with(|roots| {
        if let Ok(mut roots) = roots.try_borrow_mut() {
            roots.retain(|root| root.0 != id);
        }
    });
}
