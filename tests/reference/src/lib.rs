//! The string server of the RFC "prefix-cache-aware routing" on a SQL database.
//!
//! The yardstick of the filter's own string server: the same HTTP API (`query` and `notify`), the
//! same chunks, and in place of its tables one row for each chunk, looked up, stored and evicted
//! by plain SQL ([`database`]).

pub mod database;
pub mod service;
