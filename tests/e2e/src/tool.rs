//! Programs that are not the project's own: a test that needs one is skipped where it is absent.

use crate::manifest;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The program on the path; where there is none, says that what needs it is skipped.
pub fn find(test: &str, program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|dir| dir.join(program));
    let found = found.find(|path| path.is_file());
    if found.is_none() {
        manifest::skipped(test, &format!("no {program}"));
    }
    found
}

/// Runs it to its end, without holding up the tasks of a test.
pub async fn run(mut command: Command) -> Output {
    let run = tokio::task::spawn_blocking(move || command.output());
    run.await.expect("it ran").expect("the program starts")
}
