//! The command line, made of the table of options.
//!
//! ```text
//!   ramekin serve | memory URL | limits | check DIR | import etcd FILE | plan | version
//!   ramekin lab minram | io | fields | slow-disk SOURCE MOUNTPOINT
//! ```

use crate::options::{self, Opt, Value};
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

const MINRAM_EXAMPLES: &str = "\
Examples:
  ramekin lab minram --synthetic 100000,100,1 --memory 24MiB,56MiB,127MiB
  ramekin lab minram --base lsa_base.npy --query lsa_query.npy --truth lsa_truth.npy \\
      --memory 24MiB,56MiB,127MiB --find 16MiB,127MiB --min-rate 100 --min-recall 0.95
  ramekin lab minram --base lsa_base.npy --query lsa_query.npy --memory 135MiB,256MiB,1GiB --ef 64 --out qdrant-lab \\
      --server 'env QDRANT__STORAGE__STORAGE_PATH={data} QDRANT__SERVICE__HTTP_PORT={port} qdrant'
";

pub fn command() -> Command {
    let command = Command::new("ramekin")
        // A flag that stands there twice: the later one holds, so that scripts can add to a default.
        .args_override_self(true)
        .about("A vector server that lives inside the memory you give it")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true);
    let lab = Command::new("lab")
        .about("Measure servers and disks as the published tables do")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true);
    let import = Command::new("import")
        .about("Take over what another server has")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true);
    let of = |group: &'static str| options::COMMANDS.iter().filter(move |command| group_of(command) == group);
    let (lab, import) = (lab.subcommands(of("lab").map(of_table)), import.subcommands(of("import").map(of_table)));
    command.subcommands(of("").map(of_table)).subcommand(import).subcommand(lab)
}

/// The first of two words.
fn group_of(command: &options::Command) -> &'static str {
    command.words.split_once(' ').map_or("", |(group, _)| group)
}

/// A command as the table has it.
fn of_table(command: &'static options::Command) -> Command {
    let name = command.words.rsplit(' ').next().unwrap_or_default();
    let mut built = Command::new(name).about(command.about).args_override_self(true);
    if !command.more.is_empty() {
        built = built.long_about(command.more);
    }
    if let Some(after) = after(command.words) {
        built = built.after_help(after);
    }
    let places =
        command.places.iter().map(|place| value_of(Arg::new(place.name), place).required(place.default.is_empty()));
    let flags = command.options().map(|option| {
        let flag = Arg::new(option.name).long(option.name);
        match option.value {
            Value::Switch => flag.action(ArgAction::SetTrue).help(option.help),
            // The default is what holds where neither environment nor file says anything.
            value if command.is_serve() => flag.value_name(value.name()).help(option.long_help()),
            _ => value_of(flag, option),
        }
    });
    built.args(places).args(flags)
}

fn value_of(arg: Arg, option: &'static Opt) -> Arg {
    let arg = arg.value_name(option.value.name()).help(option.help);
    if option.default.is_empty() { arg } else { arg.default_value(option.default) }
}

/// What stands below the options.
fn after(words: &str) -> Option<String> {
    match words {
        "serve" => Some(format!("{OPTIONS_INTRO}\nExit codes:\n{}", crate::exit::Plain)),
        "lab minram" => Some(MINRAM_EXAMPLES.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }
}
