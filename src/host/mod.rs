//! The only code that calls proxy-wasm: a thin adapter between Envoy's callbacks and the core.
//!
//! Owns no decision. Invariant: no callback can panic, and none makes a host call that would
//! re-enter the module, since the SDK holds its dispatcher's borrow while a callback runs.

mod abi;
mod meter;
mod root;
mod shared;
mod stream;

use proxy_wasm::traits::RootContext;

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| -> Box<dyn RootContext> { Box::<root::Root>::default() });
}}
