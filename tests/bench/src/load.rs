//! A load generator light enough not to be what is measured: blocking sockets, one thread per
//! connection, requests serialised once, short answers.

use crate::bodies;
use anyhow::{bail, Context, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What one run measured.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// Of every request, sorted.
    pub latencies: Vec<Duration>,
    /// Wall time of the run.
    pub elapsed: Duration,
}

impl Measured {
    /// Requests per second.
    pub fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// A latency quantile in milliseconds.
    pub fn quantile_ms(&self, q: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let at = (last as f64 * q).round() as usize;
        self.latencies
            .get(at)
            .map_or(f64::NAN, |l| l.as_secs_f64() * 1e3)
    }
}

/// A POST of a chat body, ready to be written to a socket.
pub fn request(body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: llm\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Chats of about `size` bytes, ready to be sent: enough that a prompt does not come again at
/// once, fewer of the large ones.
pub fn requests(size: usize) -> Vec<Vec<u8>> {
    let count = (32_000_000 / size).clamp(24, 512);
    let bodies = bodies::chats(size, count);
    bodies.iter().map(|body| request(body)).collect()
}

/// Sends `requests` in turn over `connections` sockets for about `time`.
pub fn run(
    to: SocketAddr,
    connections: usize,
    time: Duration,
    requests: &Arc<Vec<Vec<u8>>>,
) -> Result<Measured> {
    let start = Instant::now();
    let threads: Vec<_> = (0..connections)
        .map(|first| {
            let requests = Arc::clone(requests);
            std::thread::spawn(move || one_connection(to, first, start + time, &requests))
        })
        .collect();
    let mut latencies = Vec::new();
    for thread in threads {
        match thread.join() {
            Ok(of_one) => latencies.extend(of_one?),
            Err(_) => bail!("a connection's thread panicked"),
        }
    }
    let elapsed = start.elapsed();
    latencies.sort_unstable();
    Ok(Measured { latencies, elapsed })
}

/// Sends one request on a connection of its own.
pub fn once(to: SocketAddr, request: &[u8]) -> Result<()> {
    let mut socket = TcpStream::connect(to).context("connect")?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.write_all(request)?;
    read_answer(&mut socket, &mut vec![0; 64 << 10])
}

fn one_connection(
    to: SocketAddr,
    first: usize,
    until: Instant,
    requests: &[Vec<u8>],
) -> Result<Vec<Duration>> {
    let mut socket = TcpStream::connect(to).context("connect")?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut buffer = vec![0; 64 << 10];
    let mut latencies = Vec::with_capacity(1 << 16);
    // Connections start apart, so that they do not send the same prompt at the same time.
    for request in requests.iter().cycle().skip(first * 7) {
        let sent = Instant::now();
        if sent >= until {
            break;
        }
        socket.write_all(request)?;
        read_answer(&mut socket, &mut buffer)?;
        latencies.push(sent.elapsed());
    }
    Ok(latencies)
}

fn read_answer(socket: &mut TcpStream, buffer: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    loop {
        let read = socket.read(&mut buffer[filled..])?;
        if read == 0 {
            bail!("the connection was closed before the answer was complete");
        }
        filled += read;
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut answer = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(head) = answer.parse(&buffer[..filled])? else {
            continue;
        };
        if answer.code != Some(200) {
            bail!(
                "answer {:?}: {}",
                answer.code,
                String::from_utf8_lossy(&buffer[..filled])
            );
        }
        let header = |name: &str| {
            let mut headers = answer.headers.iter();
            let found = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
            std::str::from_utf8(found.value).ok()
        };
        let length = header("content-length").and_then(|value| value.parse::<usize>().ok());
        if length.is_none() && header("transfer-encoding").is_none() {
            bail!("an answer without length or chunks");
        }
        // The short answers of these pods have no such bytes but at the end of their chunks.
        let complete = |filled: &[u8]| match length {
            Some(length) => filled.len() >= head + length,
            None => filled.ends_with(b"\r\n0\r\n\r\n"),
        };
        while !complete(&buffer[..filled]) {
            let read = socket.read(&mut buffer[filled..])?;
            if read == 0 {
                bail!("the connection was closed within an answer");
            }
            filled += read;
        }
        return Ok(());
    }
}
