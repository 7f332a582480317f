//! What a person reads.
//!
//! | file | idea |
//! |---|---|
//! | `table` | runs as ratios to the best of each cell |
//! | `text` | CSV of all cells, Markdown of the summary, the block of README |
//! | `plot` | hit ratio and p90 against utilisation; load of each pod over time |

pub mod plot;
pub mod table;
pub mod text;
