//! The only code that calls proxy-wasm: a thin adapter between Envoy's callbacks and the core.
//!
//! Owns no decision. Invariant: no callback can panic, whatever ids, tokens or statuses come.
//!
//! | file | idea |
//! |---|---|
//! | `exports`, `abi` | what Envoy calls, and what is called of it |
//! | `root`, `asker` | one configuration, and the calls that it makes |
//! | `stream` | one request |
//! | `shared`, `meter` | shared data and metrics, as the core sees them |

mod abi;
mod asker;
mod exports;
mod meter;
mod root;
mod shared;
mod stream;
