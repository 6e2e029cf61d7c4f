//! What the types forbid does not compile, and what they must allow does.
//!
//! The compiler's words are compared too, so that a case fails for the reason that it is there for. They are those of
//! one toolchain: on another one only the cases that must compile are run. `TRYBUILD=overwrite` renews them.

#![cfg(not(miri))]

use std::process::Command;

const WORDS_OF: &str = "rustc 1.95.";

/// The compiler that cargo runs.
fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let out = Command::new(rustc).arg("--version").output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
}

#[test]
fn row_02_no_safe_code_reaches_a_slot_that_is_not_its_own() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile/pass/*.rs");
    let compiler = compiler();
    if compiler.starts_with(WORDS_OF) {
        cases.compile_fail("tests/compile/fail/*.rs");
    } else {
        println!("skipped in part: the expected errors are those of {WORDS_OF}x, this is {compiler}");
    }
}
