//! Chats of several turns, timed: what the cache-awareness of a router is worth.
//!
//! The chats are drawn from a seed before anything is sent: behind a few system prompts of
//! uneven popularity, arriving at random, each turn sent some time after the last answer. So all
//! routers get the same chats, and a slow one gets them later, as from people.

use crate::routers::Router;
use anyhow::{anyhow, Context, Result};
use e2e::client::{post, Conn, Version};
use http_body_util::BodyExt;
use serde_json::{json, Value};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How chats are drawn.
#[derive(Clone, Copy)]
pub struct Shape {
    pub chats: usize,
    /// Over which they begin.
    pub arrive_within: Duration,
    pub system_prompts: usize,
    pub system_bytes: usize,
    /// First message, later ones: least and most bytes, evenly in the logarithm.
    pub first_bytes: (f64, f64),
    pub later_bytes: (f64, f64),
    pub turns: (usize, usize),
    pub mean_think: Duration,
    pub reply_tokens: (u64, u64),
}

/// The chats of the report.
pub const SHAPE: Shape = Shape {
    chats: 140,
    arrive_within: Duration::from_secs(10),
    system_prompts: 8,
    system_bytes: 6_000,
    first_bytes: (4_000.0, 32_000.0),
    later_bytes: (400.0, 4_000.0),
    turns: (3, 7),
    mean_think: Duration::from_millis(800),
    reply_tokens: (16, 80),
};

struct Turn {
    text: String,
    reply_tokens: u64,
    /// Before it is sent.
    think: Duration,
}

struct Chat {
    begins: Duration,
    system: String,
    turns: Vec<Turn>,
}

/// What one router made of a set of chats.
#[derive(Clone, Default)]
pub struct Outcome {
    /// In seconds, sorted.
    pub first_token: Vec<f64>,
    pub failed: usize,
    /// Tokens of all prompts and those found in a cache, as the pods counted them.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// Requests that each pod answered.
    pub requests: Vec<u64>,
}

impl Outcome {
    pub fn mean(&self) -> f64 {
        self.first_token.iter().sum::<f64>() / self.first_token.len() as f64
    }

    pub fn quantile(&self, q: f64) -> f64 {
        let last = self.first_token.len().saturating_sub(1);
        let at = (last as f64 * q).round() as usize;
        self.first_token.get(at).copied().unwrap_or(f64::NAN)
    }

    pub fn cached_share(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens as f64
    }

    /// Requests of the busiest pod over those of the mean one.
    pub fn busiest(&self) -> f64 {
        let sum = self.requests.iter().sum::<u64>() as f64;
        let most = self.requests.iter().max().copied().unwrap_or(0) as f64;
        most * self.requests.len() as f64 / sum
    }

    /// Several rounds as one.
    pub fn add(&mut self, other: &Self) {
        self.first_token.extend(&other.first_token);
        self.first_token.sort_by(f64::total_cmp);
        self.failed += other.failed;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.requests.resize(other.requests.len(), 0);
        for (sum, more) in self.requests.iter_mut().zip(&other.requests) {
            *sum += more;
        }
    }
}

/// Plays the chats of `seed` through a router, in front of pods that have just been restarted.
pub async fn play(router: &Router, pods: &[u16], shape: Shape, seed: u64) -> Result<Outcome> {
    for port in pods {
        ask(*port, "/sim/restart").await?;
    }
    let start = Instant::now();
    let tasks: Vec<_> = draw(shape, seed)
        .into_iter()
        .map(|chat| tokio::spawn(play_one(router.address, chat, start)))
        .collect();
    let mut outcome = Outcome::default();
    for task in tasks {
        let (first_tokens, failure) = task.await?;
        outcome.first_token.extend(first_tokens);
        if let Some(error) = failure {
            outcome.failed += 1;
            eprintln!("{}: a chat ended early: {error:#}", router.name);
        }
    }
    outcome.first_token.sort_by(f64::total_cmp);
    for port in pods {
        let stats = ask(*port, "/sim/stats").await?;
        let count = |key: &str| {
            stats[key]
                .as_u64()
                .with_context(|| format!("{key}: {stats}"))
        };
        outcome.prompt_tokens += count("prompt_tokens")?;
        outcome.cached_tokens += count("cached_tokens")?;
        outcome.requests.push(count("succeeded")?);
    }
    Ok(outcome)
}

async fn ask(port: u16, path: &str) -> Result<Value> {
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let mut conn = connect(to).await?;
    let method = if path.ends_with("stats") {
        "GET"
    } else {
        "POST"
    };
    let request = e2e::client::request(method.parse()?, path, &[], e2e::client::full(""));
    let reply = conn.try_send(request).await.map_err(|e| anyhow!(e))?;
    Ok(serde_json::from_slice(&reply.body)?)
}

async fn connect(to: SocketAddr) -> Result<Conn> {
    Conn::try_open(to, Version::H1)
        .await
        .map_err(|e| anyhow!(e))
}

/// Times to first token in seconds, and why the chat ended before its last turn.
async fn play_one(to: SocketAddr, chat: Chat, start: Instant) -> (Vec<f64>, Option<anyhow::Error>) {
    tokio::time::sleep_until((start + chat.begins).into()).await;
    let mut first_tokens = Vec::new();
    let mut messages = vec![json!({"role": "system", "content": chat.system})];
    let played = async {
        let mut conn = connect(to).await?;
        for turn in &chat.turns {
            tokio::time::sleep(turn.think).await;
            messages.push(json!({"role": "user", "content": turn.text}));
            let body = json!({"model": "m", "messages": messages, "stream": true,
                "max_tokens": turn.reply_tokens});
            let (first_token, reply) = send(&mut conn, &body).await?;
            first_tokens.push(first_token.as_secs_f64());
            messages.push(json!({"role": "assistant", "content": reply}));
        }
        Ok(())
    };
    let failure = played.await.err();
    (first_tokens, failure)
}

/// Sends one turn; the time to the first byte of the answer's body, and the text of the answer.
async fn send(conn: &mut Conn, body: &Value) -> Result<(Duration, String)> {
    let sent = Instant::now();
    let request = post("/v1/chat/completions", body);
    let answer = conn.start(request).await.map_err(|e| anyhow!(e))?;
    let status = answer.status();
    let mut body = answer.into_body();
    let mut events = Vec::new();
    let mut first = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        first.get_or_insert_with(|| sent.elapsed());
        events.extend_from_slice(&data);
    }
    let events = String::from_utf8_lossy(&events);
    let first = first.filter(|_| status == 200 && events.contains("data: [DONE]"));
    let first = first.with_context(|| format!("{status}: {events}"))?;
    let events = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let text = |e: Value| {
        e["choices"][0]["delta"]["content"]
            .as_str()
            .map(str::to_string)
    };
    Ok((first, events.filter_map(text).collect()))
}

fn draw(shape: Shape, seed: u64) -> Vec<Chat> {
    let mut random = fastrand::Rng::with_seed(seed);
    let systems: Vec<String> = (0..shape.system_prompts)
        .map(|_| text(&mut random, shape.system_bytes))
        .collect();
    let one = |_| {
        let turns = random.usize(shape.turns.0..=shape.turns.1);
        Chat {
            begins: shape.arrive_within.mul_f64(random.f64()),
            system: systems[zipf(&mut random, systems.len())].clone(),
            turns: (0..turns).map(|n| turn(&mut random, shape, n)).collect(),
        }
    };
    (0..shape.chats).map(one).collect()
}

fn turn(random: &mut fastrand::Rng, shape: Shape, number: usize) -> Turn {
    let (least, most) = if number == 0 {
        shape.first_bytes
    } else {
        shape.later_bytes
    };
    let bytes = least * (most / least).powf(random.f64());
    // Exponential, as of people who do not wait for each other.
    let think = shape.mean_think.mul_f64(-(1.0 - random.f64()).ln());
    Turn {
        text: text(random, bytes as usize),
        reply_tokens: random.u64(shape.reply_tokens.0..=shape.reply_tokens.1),
        think: if number == 0 { Duration::ZERO } else { think },
    }
}

/// The n-th of `count` with a weight of 1/n.
fn zipf(random: &mut fastrand::Rng, count: usize) -> usize {
    let weight = |n: usize| 1.0 / (n + 1) as f64;
    let mut left = random.f64() * (0..count).map(weight).sum::<f64>();
    for n in 0..count {
        left -= weight(n);
        if left < 0.0 {
            return n;
        }
    }
    count - 1
}

/// Words that no other text has in this order.
fn text(random: &mut fastrand::Rng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 8);
    while text.len() < bytes {
        let letters = random.usize(2..9);
        text.extend((0..letters).map(|_| random.lowercase()));
        text.push(' ');
    }
    text
}
