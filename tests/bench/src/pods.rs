//! The simulated pods as a process of their own, so that their CPU is nobody else's.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Running pods; ended when dropped.
pub struct Pods {
    process: Child,
    /// Where each listens.
    pub ports: Vec<u16>,
}

impl Drop for Pods {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Pods {
    /// Starts `count` pods on free ports with further `arguments` of sim-vllm.
    pub fn start(count: usize, arguments: &[&str]) -> Result<Self> {
        let mut process = Command::new(env!("CARGO"))
            .args([
                "run",
                "--quiet",
                "--profile",
                "native",
                "-p",
                "sim-vllm",
                "--",
            ])
            .args(["--pods", &count.to_string(), "--port", "0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .context("the simulated pods")?;
        let stdout = process.stdout.take();
        let stdout = stdout.context("stdout of the simulated pods")?;
        let mut lines = BufReader::new(stdout).lines();
        let mut ports = Vec::new();
        for _ in 0..count {
            let line = lines.next().context("a line for each pod")??;
            ports.push(line.rsplit(':').next().context("a port")?.trim().parse()?);
        }
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { process, ports })
    }
}
