use clap::CommandFactory;

use super::*;

#[test]
fn the_table_is_consistent() {
    Cli::command().debug_assert();
}

fn each_command(command: &clap::Command, path: &str, visit: &mut dyn FnMut(&str, &clap::Command)) {
    let path = format!("{path} {}", command.get_name());
    visit(path.trim(), command);
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        each_command(sub, &path, visit);
    }
}

#[test]
fn every_command_shows_an_example() {
    each_command(&Cli::command(), "", &mut |path, command| {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.starts_with("Example"), "{path} has no example");
        assert!(help.contains("\n  forebay "), "{path}: the example must be a command");
        assert!(command.get_about().is_some(), "{path} does not say what it does");
    });
}

#[test]
fn every_example_parses() {
    each_command(&Cli::command(), "", &mut |path, command| {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter_map(|l| l.strip_prefix("  forebay ")) {
            let line = line.split("     ").next().unwrap_or(line);
            let line = line.split(" > ").next().and_then(|l| l.split(" | ").next()).unwrap_or(line);
            let words = std::iter::once("forebay").chain(line.split_whitespace());
            if let Err(e) = Cli::try_parse_from(words) {
                panic!("the example of '{path}' does not parse: forebay {line}\n{e}");
            }
        }
    });
}

#[test]
fn every_argument_is_explained() {
    each_command(&Cli::command(), "", &mut |path, command| {
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{path} {} has no help", argument.get_id());
        }
    });
}

#[test]
fn zpool_order_of_arguments_parses() {
    let words = "forebay pool create -f -o comment=x tank mirror a b mirror c d log mirror e f";
    let cli = Cli::try_parse_from(words.split(' ')).unwrap();
    let Command::Pool { command: PoolCommand::Create { force, options, pool, vdevs, .. } } =
        cli.command
    else {
        panic!("not a create");
    };
    assert!(force);
    assert_eq!(options, [("comment".to_owned(), "x".to_owned())]);
    assert_eq!((pool.as_str(), vdevs.len()), ("tank", 10));
    let words = "forebay pool get -Hp size,free tank other";
    let cli = Cli::try_parse_from(words.split(' ')).unwrap();
    let Command::Pool { command: PoolCommand::Get { listing, properties, pools, .. } } =
        cli.command
    else {
        panic!("not a get");
    };
    assert!(listing.scripted && listing.exact);
    assert_eq!((properties.0.len(), pools.len()), (2, 2));
}

#[test]
fn volume_names_have_two_parts() {
    assert!(volume_name("tank/vol0").is_ok());
    for bad in ["tank", "/vol", "tank/", "a/b/c", ""] {
        assert!(volume_name(bad).is_err(), "{bad}");
    }
}

#[test]
fn listen_addresses() {
    use serve::listen_address;
    assert_eq!(listen_address("unix:/x").unwrap(), ListenAddress::Unix("/x".into()));
    assert!(!listen_address("tcp:127.0.0.1:10809").unwrap().is_exposed());
    assert!(!listen_address("tcp:[::1]:1").unwrap().is_exposed());
    assert!(listen_address("tcp:0.0.0.0:10809").unwrap().is_exposed());
    for bad in ["", "unix:", "127.0.0.1:1", "tcp:127.0.0.1", "tcp:127.0.0.1:99999"] {
        assert!(listen_address(bad).is_err(), "{bad}");
    }
}

#[test]
fn attach_and_detach_take_what_the_kernel_takes() {
    let parse = |words: &str| Cli::try_parse_from(words.split(' '));
    let Command::Attach(args) = parse("forebay attach tank/vol0").unwrap().command else {
        panic!("not an attach");
    };
    assert_eq!((args.read_only, args.connections, args.block_size), (false, None, 512));
    assert_eq!((args.timeout, args.dead_timeout), (30, 300));
    for wrong in [
        "attach",
        "attach tank",
        "attach /dev/nbd0",
        "attach tank/a --connections 0",
        "attach tank/a --connections 17",
        "attach tank/a --block-size 513",
        "attach tank/a --timeout 0",
        "attach tank/a --dead-timeout 1d",
        "detach",
        "detach tank",
        "detach nbd0",
    ] {
        assert!(parse(&format!("forebay {wrong}")).is_err(), "{wrong}");
    }
    for (words, expected) in [
        ("detach -f /dev/nbd0", DetachTarget::Device("/dev/nbd0".into())),
        ("detach tank/vol0 --json", DetachTarget::Volume("tank/vol0".to_owned())),
    ] {
        let Command::Detach(args) = parse(&format!("forebay {words}")).unwrap().command else {
            panic!("not a detach");
        };
        assert_eq!(args.volume, expected);
    }
}
