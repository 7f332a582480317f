//! Connections: accepting them, HTTP/1 or HTTP/2 by their first bytes, and ending them with a
//! reset when the pod stops or a fault asks for it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::pod::Pod;
use crate::server;

static HTTP: LazyLock<Builder<TokioExecutor>> = LazyLock::new(|| {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http2().enable_connect_protocol();
    builder
});

/// Accepts connections until it is aborted.
pub async fn accept(pod: Arc<Pod>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                pod.engine.counters.connections.fetch_add(1, Relaxed);
                pod.spawn(serve(pod.clone(), stream));
            }
            // Out of file descriptors, most likely: the next ones may be closed soon.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// One connection, and the way to reset it from within a request.
#[derive(Default)]
pub struct Connection {
    reset: AtomicBool,
    killed: Notify,
}

impl Connection {
    /// Resets the connection instead of closing it.
    pub fn kill(&self) {
        self.reset.store(true, Relaxed);
        self.killed.notify_one();
    }
}

async fn serve(pod: Arc<Pod>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut reset = pod.reset.subscribe();
    let connection = Arc::new(Connection::default());
    let io = Io {
        stream,
        connection: connection.clone(),
    };
    let of_request = connection.clone();
    let service =
        service_fn(move |request| server::answer(pod.clone(), of_request.clone(), request));
    let stopped = async {
        let _ = reset.changed().await;
        connection.reset.store(true, Relaxed);
    };
    tokio::select! {
        _ = HTTP.serve_connection_with_upgrades(TokioIo::new(io), service) => {}
        () = connection.killed.notified() => {}
        () = stopped => {}
    }
}

/// A stream that is reset rather than closed when its connection says so.
struct Io {
    stream: TcpStream,
    connection: Arc<Connection>,
}

impl Drop for Io {
    fn drop(&mut self) {
        if self.connection.reset.load(Relaxed) {
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}
