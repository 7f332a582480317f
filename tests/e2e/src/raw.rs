//! Bytes on a socket, for requests that no library would send.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection of bytes.
pub struct Raw {
    stream: TcpStream,
    /// Everything received so far.
    pub received: Vec<u8>,
}

impl Raw {
    /// Connects.
    pub async fn open(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        Self {
            stream,
            received: Vec::new(),
        }
    }

    /// Writes; a peer that has closed is no error.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// Reads until `enough` says so, the peer closes, or `patience` is over. Returns whether
    /// there was enough.
    pub async fn read_until(&mut self, patience: Duration, enough: impl Fn(&[u8]) -> bool) -> bool {
        let read = async {
            let mut piece = [0; 16384];
            while !enough(&self.received) {
                match self.stream.read(&mut piece).await {
                    Ok(0) | Err(_) => return false,
                    Ok(n) => self.received.extend_from_slice(&piece[..n]),
                }
            }
            true
        };
        tokio::time::timeout(patience, read).await.unwrap_or(false)
    }

    /// Reads one head of an answer and returns its status, or nothing when none came.
    pub async fn status(&mut self, patience: Duration) -> Option<u16> {
        self.received.clear();
        self.read_until(patience, |b| b.windows(4).any(|w| w == b"\r\n\r\n"))
            .await;
        let text = String::from_utf8_lossy(&self.received);
        text.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
    }

    /// Everything received, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }

    /// Closes with a reset, as a client that dies does.
    pub fn reset(self) {
        let _ = self.stream.set_zero_linger();
    }

    /// Ends the sending side.
    pub async fn end(&mut self) {
        let _ = self.stream.shutdown().await;
    }
}
