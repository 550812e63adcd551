//! The command line: sub-commands as data, flags of `serve` from the table of options.
//!
//! ```text
//!   ramekin serve | memory URL | limits | check DIR | version
//!   ramekin plan
//!   ramekin lab minram | io | slow-disk
//! ```

use crate::settings;
use clap::{Arg, ArgAction, Command};

/// Stands above the table in the docs and below the flags in the help.
pub const OPTIONS_INTRO: &str = "\
A flag wins over the environment, the environment over the configuration file, the file over the default.
The file is TOML and uses the names of the flags, for example:

    data = \"/var/lib/ramekin\"
    memory = \"256MiB\"
    http = \"127.0.0.1:6333\"

Put keys into the file or the environment: flags can be seen by everybody on the machine.
";

pub fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON instead of a table");
    Command::new("ramekin")
        // A flag that stands there twice: the later one holds, so that scripts can add to a default.
        .args_override_self(true)
        .about("A vector server that lives inside the memory you give it")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(
            Command::new("serve")
                .args_override_self(true)
                .about("Run the server")
                .args(settings::arguments())
                .after_help(format!("{OPTIONS_INTRO}\nExit codes:\n{}", crate::exit::Plain)),
        )
        .subcommand(
            Command::new("memory")
                .about("Show the memory ledger of a running server")
                .arg(
                    Arg::new("url")
                        .value_name("URL")
                        .default_value("http://127.0.0.1:6333")
                        .help("Address of its REST door"),
                )
                .arg(
                    Arg::new("api-key")
                        .long("api-key")
                        .value_name("KEY")
                        .help("Key of the server [env: RAMEKIN_API_KEY]"),
                )
                .arg(Arg::new("ca").long("ca").value_name("FILE").help("For https: certificates to trust, in PEM"))
                .arg(json()),
        )
        .subcommand(
            Command::new("limits")
                .about("Print every limit of the server")
                .arg(
                    Arg::new("memory")
                        .long("memory")
                        .value_name("SIZE")
                        .help("Also the limits that follow from this budget"),
                )
                .arg(json()),
        )
        .subcommand(
            Command::new("check")
                .about("Verify a data folder that no server is using")
                .arg(Arg::new("data").value_name("DIR").required(true).help("The data folder"))
                .arg(
                    Arg::new("repair")
                        .long("repair")
                        .action(ArgAction::SetTrue)
                        .help("Cut a damaged log so that a server starts again; says what is lost by it"),
                )
                .arg(json()),
        )
        .subcommand(crate::plan::command())
        .subcommand(crate::lab::command())
        .subcommand(Command::new("version").about("Print the version").arg(json()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }
}
