//! The three statements of the string server.
//!
//! Invariant: `query` changes nothing; after `notify` a server has at most `capacity` rows, the
//! most recently used ones, and of one prompt its head.
//! Cost: each is linear in the chunks of the prompt, times a look-up in a B-tree.

use prefix_router::chunk::ChunkHash;
use rusqlite::{named_params, Connection, Result};

/// The leading chunks of a prompt that a server holds: all before the first that it does not.
const QUERY: &str = "
SELECT COALESCE(MIN(asked.key), json_array_length(:hashes))
FROM json_each(:hashes) AS asked
WHERE NOT EXISTS (SELECT 1 FROM held WHERE server = :server AND hash = asked.value)";

/// Time never goes backwards within a server.
const TIME: &str = "
SELECT MAX(:t, COALESCE(MAX(last_used), :t)), COALESCE(MAX(call), 0) + 1
FROM held WHERE server = :server";

const NOTIFY: &str = "
INSERT INTO held (server, hash, depth, last_used, call)
SELECT :server, asked.value, asked.key, :t, :call
FROM json_each(:hashes) AS asked
WHERE asked.key < :capacity
ON CONFLICT (server, hash) DO UPDATE SET last_used = excluded.last_used, call = excluded.call";

const EVICT: &str = "
DELETE FROM held
WHERE server = :server AND hash IN (
    SELECT hash FROM held
    WHERE server = :server
    ORDER BY last_used DESC, call DESC, depth ASC
    LIMIT -1 OFFSET :capacity)";

/// What each server holds.
pub struct Database(Connection);

impl Database {
    /// An empty database in memory.
    pub fn new() -> Result<Self> {
        let connection = Connection::open_in_memory()?;
        connection.execute_batch(include_str!("schema.sql"))?;
        Ok(Self(connection))
    }

    /// How many leading chunks `server` holds.
    pub fn query(&self, server: &str, chunks: &[ChunkHash]) -> Result<u64> {
        let mut query = self.0.prepare_cached(QUERY)?;
        let parameters = named_params! {":server": server, ":hashes": hashes(chunks)};
        query.query_row(parameters, |row| row.get(0))
    }

    /// `server` used the chunks at `t`; returns how many others it lost for them.
    pub fn notify(&self, server: &str, chunks: &[ChunkHash], t: f64, capacity: u32) -> Result<u64> {
        let whole = self.0.unchecked_transaction()?;
        let now = named_params! {":server": server, ":t": t};
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let (t, call): (f64, i64) = whole.prepare_cached(TIME)?.query_row(now, row)?;
        whole.prepare_cached(NOTIFY)?.execute(named_params! {
            ":server": server, ":hashes": hashes(chunks), ":t": t, ":call": call,
            ":capacity": capacity,
        })?;
        let evict = named_params! {":server": server, ":capacity": capacity};
        let evicted = whole.prepare_cached(EVICT)?.execute(evict)?;
        whole.commit()?;
        Ok(evicted as u64)
    }
}

/// A JSON array: SQL's integers have a sign.
fn hashes(chunks: &[ChunkHash]) -> String {
    let signed: Vec<i64> = chunks.iter().map(|hash| hash.0 as i64).collect();
    serde_json::to_string(&signed).expect("integers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(seed: u64, chunks: u64) -> Vec<ChunkHash> {
        (0..chunks)
            .map(|n| ChunkHash(u64::MAX / 2 + seed * 1000 + n))
            .collect()
    }

    #[test]
    fn the_least_recently_used_goes_from_its_tail() {
        let database = Database::new().unwrap();
        let (a, b) = (chain(1, 4), chain(2, 4));
        assert_eq!(database.notify("s", &a, 1.0, 6).unwrap(), 0);
        assert_eq!(database.notify("s", &b, 2.0, 6).unwrap(), 2);
        assert_eq!(database.query("s", &a).unwrap(), 2);
        assert_eq!(database.query("s", &b).unwrap(), 4);
        assert_eq!(database.query("other", &b).unwrap(), 0);
        assert_eq!(database.notify("s", &a[..2], 3.0, 6).unwrap(), 0);
        assert_eq!(database.notify("s", &chain(3, 4), 4.0, 6).unwrap(), 4);
        assert_eq!(database.query("s", &a).unwrap(), 2, "it was used again");
        assert_eq!(database.query("s", &b).unwrap(), 0);
    }

    #[test]
    fn of_a_prompt_that_is_too_long_the_head_stays() {
        let database = Database::new().unwrap();
        database.notify("s", &chain(1, 9), 1.0, 6).unwrap();
        assert_eq!(database.query("s", &chain(1, 9)).unwrap(), 6);
        assert_eq!(database.query("s", &[]).unwrap(), 0);
    }

    #[test]
    fn time_does_not_go_backwards() {
        let database = Database::new().unwrap();
        database.notify("s", &chain(1, 3), 9.0, 6).unwrap();
        database.notify("s", &chain(2, 3), 1.0, 6).unwrap();
        database.notify("s", &chain(3, 2), 9.5, 6).unwrap();
        let kept = [1, 2, 3].map(|seed| database.query("s", &chain(seed, 3)).unwrap());
        assert_eq!(kept, [1, 3, 2], "the second is no older than the first");
    }
}
