//! The `warpfeed` command-line tool.

mod bench;
mod check;
mod data;
mod doctor;
#[cfg(feature = "image")]
mod images;
#[cfg(feature = "image")]
mod inspect;
#[cfg(feature = "cuda")]
mod kernel;
mod pace;
mod pipeline;
mod ratio;
mod report;
mod rig;
mod usage;
#[cfg(feature = "image")]
mod verify;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

/// Keeps a GPU fed: measures what the loader does on this machine, and says what the machine allows.
#[derive(Debug, Parser)]
#[command(name = "warpfeed", version, max_term_width = 110)]
struct Cli {
    /// Says more on stderr: once what is decided, twice every detail
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 100)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(Box<bench::Args>),
    Check(check::Args),
    Doctor(doctor::Args),
    #[cfg(feature = "image")]
    Inspect(inspect::Args),
    #[cfg(feature = "image")]
    Verify(verify::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = match cli.verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let format = tracing_subscriber::fmt().without_time().with_target(false).with_max_level(level);
    format.with_writer(io::stderr).with_ansi(io::stderr().is_terminal()).init();
    // The status of an error: of a verification 1 says something else, and a survey is alike.
    let (outcome, status) = match cli.command {
        Command::Bench(args) => (bench::run(&args).map(|()| ExitCode::SUCCESS), 1),
        Command::Check(args) => (check::run(&args).map(|()| ExitCode::SUCCESS), 1),
        Command::Doctor(args) => (doctor::run(&args).map(|()| ExitCode::SUCCESS), 1),
        #[cfg(feature = "image")]
        Command::Inspect(args) => (inspect::run(&args).map(|()| ExitCode::SUCCESS), 2),
        #[cfg(feature = "image")]
        Command::Verify(args) => (verify::run(&args), 2),
    };
    match outcome {
        Ok(status) => status,
        // Who reads our output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell where this fails.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(status)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
