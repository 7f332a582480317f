//! One configuration of the plugin in one VM.
//!
//! Owns the instance that streams share, and the VM's one board of requests in flight per pool,
//! which outlives a configuration update as the streams of the old one do.

use super::abi::{self, Buffer};
use super::asker::Asker;
use super::meter::HostMeter;
use super::stream::{Instance, Stream};
use crate::config::Config;
use crate::pods::load::LoadBoard;
use crate::router::Router;
use core::cell::RefCell;
use core::hash::{BuildHasher, Hasher};
use std::hash::RandomState;
use std::rc::Rc;

/// Longest period of leases and gauges; with something to ask, its interval if that is shorter.
const TICK_MS: u32 = 1000;
/// The first tick comes early when there is something to ask.
const FIRST_TICK_MS: u32 = 20;
/// A configuration larger than this is refused unread.
const MAX_CONFIG_BYTES: usize = 4 << 20;
/// The first Envoy that lets a filter hold headers while the body arrives.
const FIRST_MINOR: u64 = 35;
/// The first Envoy whose admin listener can leave out clusters.
const FILTER_MINOR: u64 = 38;

thread_local! {
    static BOARDS: RefCell<Vec<(String, Rc<LoadBoard>)>> = const { RefCell::new(Vec::new()) };
}

/// The root context.
#[derive(Default)]
pub struct Root {
    instance: Option<Rc<Instance>>,
    asker: Option<Asker>,
    /// The period of ticks after the first one.
    then_ms: u32,
}

impl Root {
    /// The configuration goes: pods that the next one does not have shall not stay at their last
    /// value. It sets its own within a second.
    pub fn on_done(&mut self) -> bool {
        if let Some(instance) = &self.instance {
            instance.meter.zero();
        }
        true
    }

    /// A call was answered; without headers: it failed.
    pub fn on_http_call_response(&mut self, token: u32, headers: usize, size: usize) {
        if let (Some(instance), Some(asker)) = (&self.instance, &self.asker) {
            asker.answered(instance, token, headers, size);
        }
    }

    /// A configuration came; false refuses it.
    pub fn on_configure(&mut self, _: usize) -> bool {
        let text = abi::buffer(Buffer::PluginConfiguration, MAX_CONFIG_BYTES).unwrap_or_default();
        let config = match Config::parse(&text) {
            Ok(config) => config,
            Err(error) => {
                abi::log(4, &format!("configuration refused: {error}"));
                return false;
            }
        };
        let minor = envoy_minor();
        let may_pause = minor >= FIRST_MINOR;
        if !may_pause {
            abi::log(3, "this Envoy is older than 1.35: routing by load only");
        }
        let intervals = [
            config.discovery.as_ref().map(|d| d.poll_interval_ms),
            config.metrics_scrape.as_ref().map(|s| s.poll_interval_ms),
        ];
        let interval = intervals.into_iter().flatten().min();
        self.then_ms = interval.map_or(0, |interval| interval.min(TICK_MS));
        let meter = HostMeter::new(&config);
        let board = board(&config.pool);
        self.asker = Asker::new(&config, board.owner(), minor >= FILTER_MINOR);
        let router = Router::new(config, board, may_pause);
        let footprint = router.table().footprint();
        let (keys, bytes) = (footprint.keys, footprint.bytes);
        let room = format!("shared data of at most {keys} keys, {bytes} bytes");
        abi::log(2, &room);
        self.instance = Some(Rc::new(Instance::new(router, meter)));
        abi::set_tick_period(match interval {
            Some(_) => FIRST_TICK_MS,
            None => TICK_MS,
        });
        true
    }

    /// A period has passed.
    pub fn on_tick(&mut self) {
        if let Some(instance) = &self.instance {
            let env = instance.env();
            instance.router.tick(&env);
            instance.meter.gauges(&instance.router, &env);
            if let Some(asker) = &self.asker {
                asker.tick(instance);
            }
        }
        let then_ms = core::mem::take(&mut self.then_ms);
        if then_ms > 0 {
            abi::set_tick_period(then_ms);
        }
    }

    /// A stream of this configuration.
    pub fn stream(&self) -> Stream {
        Stream::new(self.instance.clone())
    }
}

/// This VM's board of a pool.
fn board(pool: &str) -> Rc<LoadBoard> {
    // A random owner: no two VMs are alike, nor one VM before and after a reload.
    let owner = RandomState::new().build_hasher().finish();
    let new = || Rc::new(LoadBoard::new(pool, owner));
    BOARDS.with(|boards| {
        let Ok(mut boards) = boards.try_borrow_mut() else {
            return new();
        };
        if let Some((_, board)) = boards.iter().find(|(name, _)| name == pool) {
            return board.clone();
        }
        let board = new();
        boards.push((pool.to_owned(), board.clone()));
        board
    })
}

/// The minor version of this Envoy. Where it does not say, it is taken for a current one.
fn envoy_minor() -> u64 {
    let number = |part: &str| {
        let path = format!("xds\0node\0user_agent_build_version\0version\0{part}");
        let value = abi::property(&path)?;
        value
            .first_chunk::<8>()
            .map(|bytes| u64::from_le_bytes(*bytes))
    };
    match (number("major_number"), number("minor_number")) {
        (Some(1), Some(minor)) => minor,
        _ => u64::MAX,
    }
}
