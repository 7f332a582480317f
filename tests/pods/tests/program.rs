//! The program prints one line a pod, and every pod answers.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Ends the program with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn hosts_several_pods() {
    let program = Command::new(env!("CARGO_BIN_EXE_sim-vllm"))
        .args(["--pods", "2", "--port", "0"])
        .stdout(Stdio::piped())
        .spawn();
    let mut program = Running(program.unwrap());
    let lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
    for (i, line) in lines.take(2).map(Result::unwrap).enumerate() {
        let addr = line
            .strip_prefix(&format!("pod vllm-{i} listening on "))
            .unwrap();
        let answer = reqwest::get(format!("http://{addr}/health")).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["x-sim-pod"], format!("vllm-{i}"));
    }
}
