//! Serves the reference until it is killed.

use clap::Parser;
use sql_reference::service::{router, Settings};
use std::net::Ipv4Addr;

/// The string server of the RFC on a SQL database, on 127.0.0.1.
#[derive(Parser)]
struct Arguments {
    /// Port; 0: any.
    #[arg(long, default_value_t = 8090)]
    port: u16,
    /// Names of the servers.
    #[arg(long, value_delimiter = ',', default_value = "vllm-0,vllm-1,vllm-2")]
    servers: Vec<String>,
    /// Bytes in a chunk.
    #[arg(long, default_value_t = 256)]
    chunk_bytes: usize,
    /// Most chunks of one server.
    #[arg(long, default_value_t = 8192)]
    capacity_chunks: u32,
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let arguments = Arguments::parse();
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, arguments.port)).await?;
    println!("listening on {}", listener.local_addr()?);
    let settings = Settings {
        servers: arguments.servers,
        chunk_bytes: arguments.chunk_bytes.max(1),
        capacity_chunks: arguments.capacity_chunks,
    };
    axum::serve(listener, router(settings)).await
}
