//! One simulated pod: the state that its connections share, and the handle that a test holds.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::Value;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use twox_hash::XxHash64;

use crate::answer::ApiError;
use crate::config::PodConfig;
use crate::connection;
use crate::faults::Fault;
use crate::metrics::{self, Stats};
use crate::queue::Engine;
use crate::received::{Log, Received};
use crate::responses::Responses;

const BACKLOG: i32 = 1024;

/// What all connections of a pod share.
pub struct Pod {
    pub(crate) config: Arc<PodConfig>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) responses: Responses,
    pub(crate) log: Arc<Log>,
    pub(crate) fault: Mutex<Option<Fault>>,
    /// Changes when all connections must be reset.
    pub(crate) reset: watch::Sender<u64>,
    runtime: Handle,
    /// Bound for the pod's life, so that nobody else gets the port; listening or not.
    socket: TcpListener,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pod {
    /// The model of a request, when it is one that this pod serves.
    pub(crate) fn model(&self, body: &Value) -> Result<String, ApiError> {
        let served = &self.config.models;
        match (&body["model"], served.first()) {
            (Value::String(model), None) => Ok(model.clone()),
            (Value::String(model), Some(_)) if served.contains(model) => Ok(model.clone()),
            (Value::Null, first) => Ok(first.cloned().unwrap_or_else(|| "sim".into())),
            (other, _) => {
                let name = other
                    .as_str()
                    .map_or_else(|| other.to_string(), str::to_owned);
                Err(ApiError::not_found(
                    format!("The model `{name}` does not exist."),
                    "model",
                ))
            }
        }
    }

    /// An id that no other request, pod or restart gives.
    pub(crate) fn unique_id(&self, prefix: &str) -> String {
        let pod = XxHash64::oneshot(
            self.engine.counters.started().to_bits(),
            self.config.name.as_bytes(),
        );
        format!("{prefix}{pod:016x}{:016x}", self.engine.next_id())
    }

    pub(crate) fn restart(&self) {
        self.engine.restart();
        self.responses.clear();
    }

    pub(crate) fn stop(&self) {
        if let Some(task) = lock(&self.accepting).take() {
            task.abort();
        }
        // On Linux this ends listening at once and keeps the port.
        let _ = SockRef::from(&self.socket).shutdown(std::net::Shutdown::Both);
        self.reset.send_modify(|n| *n += 1);
    }

    pub(crate) fn listen(self: &Arc<Self>) -> io::Result<()> {
        let mut accepting = lock(&self.accepting);
        if accepting.is_some() {
            return Ok(());
        }
        SockRef::from(&self.socket).listen(BACKLOG)?;
        let _in_runtime = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(self.socket.try_clone()?)?;
        *accepting = Some(
            self.runtime
                .spawn(connection::accept(self.clone(), listener)),
        );
        Ok(())
    }

    /// Refuses connections for a time, soon: what is being answered right now still is.
    pub(crate) fn refuse(self: &Arc<Self>, time: Duration) {
        let pod = self.clone();
        self.spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            pod.stop();
            tokio::time::sleep(time).await;
            if let Err(error) = pod.listen() {
                eprintln!("pod {}: cannot listen again: {error}", pod.config.name);
            }
        });
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }
}

/// A running pod. Dropping it stops the pod.
pub struct SimPod {
    /// Where it listens, also while it is stopped.
    pub addr: SocketAddr,
    pod: Arc<Pod>,
}

impl SimPod {
    /// Starts a pod on threads of this library, apart from the caller's runtime.
    pub fn start(config: PodConfig) -> io::Result<Self> {
        static RUNTIME: OnceLock<io::Result<Runtime>> = OnceLock::new();
        let new = || {
            Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("sim-vllm")
                .enable_all()
                .build()
        };
        let runtime = RUNTIME
            .get_or_init(new)
            .as_ref()
            .map_err(|e| io::Error::new(e.kind(), e.to_string()))?;
        Self::start_on(runtime.handle(), config)
    }

    /// Starts a pod on a given runtime.
    pub fn start_on(runtime: &Handle, config: PodConfig) -> io::Result<Self> {
        // Bound twice, the second time to the very port: a port that the system chose is given
        // away when the socket stops listening, one that was asked for stays.
        let chosen = bind(config.listen)?;
        let addr = chosen.local_addr()?;
        let socket = bind(addr)?;
        drop(chosen);
        let config = Arc::new(config);
        let pod = Arc::new(Pod {
            engine: Engine::new(config.clone()),
            responses: Responses::default(),
            log: Arc::new(Log::new(config.log_requests)),
            fault: Mutex::new(None),
            reset: watch::Sender::new(0),
            runtime: runtime.clone(),
            socket,
            accepting: Mutex::new(None),
            config,
        });
        pod.listen()?;
        Ok(Self { addr, pod })
    }

    /// The configured name.
    pub fn name(&self) -> &str {
        &self.pod.config.name
    }

    /// `http://address` followed by `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// A snapshot of counters and cache.
    pub fn stats(&self) -> Stats {
        metrics::stats(&self.pod.engine)
    }

    /// What a new process would be: empty cache, counters at zero, no stored responses, a later
    /// start time. Socket and connections stay, and so does the log.
    pub fn restart(&self) {
        self.pod.restart();
    }

    /// Refuses connections from now on and resets those that are open, within moments.
    pub fn stop(&self) {
        self.pod.stop();
    }

    /// Listens again, on the same port, with the cache as it was.
    pub fn start_again(&self) -> io::Result<()> {
        self.pod.listen()
    }

    /// Sets the fault for the requests to come; one that restarts or refuses does so now.
    pub fn set_fault(&self, fault: Fault) {
        crate::faults::set(&self.pod, fault);
    }

    /// Behaves well again.
    pub fn clear_fault(&self) {
        *lock(&self.pod.fault) = None;
    }

    /// The newest requests, oldest first.
    pub fn received(&self) -> Vec<Received> {
        self.pod.log.all()
    }

    /// The newest request.
    pub fn last_request(&self) -> Option<Received> {
        self.pod.log.all().pop()
    }

    /// Forgets the log.
    pub fn clear_received(&self) {
        self.pod.log.clear();
    }
}

impl Drop for SimPod {
    fn drop(&mut self) {
        self.pod.stop();
    }
}
