//! The conformance file again, in each mode of the simulator: what is promised does not depend on when work is
//! done, nor on the guard.

#[path = "conformance.rs"]
mod conformance;

use std::process::Command;

#[test]
fn conformance_holds_in_every_mode() {
    const MODES: [&[(&str, &str)]; 4] = [
        &[("CUSIM_LAZY", "1")],
        &[("CUSIM_DELAY_US", "3000"), ("CUSIM_SEED", "7")],
        &[("CUSIM_LAZY", "1"), ("CUSIM_DELAY_US", "1000"), ("CUSIM_PAGEABLE_WAITS", "1")],
        &[("CUSIM_GUARD", "1"), ("CUSIM_GBPS", "1"), ("CUSIM_KERNEL_US", "500"), ("CUSIM_COPY_US", "200")],
    ];
    for mode in MODES {
        let mut run = Command::new(std::env::current_exe().unwrap());
        let out = run.arg("conformance::").envs(mode.iter().copied()).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{mode:?}\n{text}\n{}", String::from_utf8_lossy(&out.stderr));
        assert!(text.contains("test conformance::"), "nothing was run: {text}");
    }
}

#[test]
fn a_variable_that_means_nothing_is_not_ignored() {
    let mut run = Command::new(std::env::current_exe().unwrap());
    for (name, value) in [("CUSIM_GBPS", "fast"), ("CUSIM_GPBS", "3")] {
        let out = run.arg("conformance::errors").env(name, value).output().unwrap();
        assert!(!out.status.success());
        assert!(String::from_utf8_lossy(&out.stderr).contains(name), "{out:?}");
        run.env_remove(name);
    }
}
