//! Names of devices in object stores, and the files of AWS's tools.

use super::*;

#[test]
fn names_say_where_and_how_large() {
    let named = parse("s3://backups/pools/tank?size=2T").unwrap();
    let (bucket, prefix) = ("backups".to_owned(), "pools/tank".to_owned());
    assert_eq!(named.place, Place::Bucket { bucket, prefix });
    assert_eq!((named.name.as_str(), named.size_bytes), ("s3://backups/pools/tank", 2 << 40));
    let named = parse("file:///srv/tank/").unwrap();
    assert_eq!(named.place, Place::Folder(PathBuf::from("/srv/tank")));
    assert_eq!(named.size_bytes, DEFAULT_SIZE_BYTES);
    for wrong in [
        "s3://backups",
        "s3:///tank",
        "file://srv/tank",
        "s3://b/p?size=1M",
        "s3://b/p?size=9E",
        "s3://b/p?colour=red",
        "s3://key:secret@b/p",
    ] {
        assert!(is_name(wrong));
        parse(wrong).unwrap_err();
    }
    assert!(!is_name("/dev/s3"));
}

#[test]
fn settings_are_those_of_the_profile() {
    let text = "[default]\nregion = eu-north-1\n# region = nowhere\n\n[profile lab]\n\
                endpoint_url=http://127.0.0.1:7070\n  aws_access_key_id = AKIA\n\
                [other]\nregion=x\n";
    let own = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(section_of(text, "default"), [own("aws_region", "eu-north-1")]);
    assert_eq!(
        section_of(text, "profile lab"),
        [own("aws_endpoint_url", "http://127.0.0.1:7070"), own("aws_access_key_id", "AKIA")]
    );
    assert_eq!(section_of(text, "lab"), []);
}

#[test]
fn a_key_of_the_environment_comes_without_the_token_of_the_profile() {
    let own = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let token = own("aws_session_token", "of the other key");
    let secret = own("aws_secret_access_key", "s");
    let of_profile = vec![own("aws_access_key_id", "ASIA"), secret, token];
    let of_profile = [of_profile, vec![own("aws_region", "eu-north-1")]].concat();
    let key = vec![own("aws_access_key_id", "AKIA"), own("aws_secret_access_key", "t")];
    let expected = [key.clone(), vec![own("aws_region", "eu-north-1")]].concat();
    let mut both = merged(of_profile.clone(), key);
    both.sort_by_key(|(name, _)| name == "aws_region");
    assert_eq!(both, expected);
    let region = own("aws_region", "us-east-1");
    let found = merged(of_profile, vec![region.clone()]);
    assert!(found.len() == 4 && found.contains(&region), "{found:?}");
}

#[test]
fn a_store_is_open_once_and_can_be_looked_at_beside_that() {
    let folder = std::env::temp_dir().join(format!("forebay-store-{}", std::process::id()));
    let name = format!("file://{}?size=64M", folder.display());
    assert_eq!(resolve_new(&name).unwrap(), name);
    let content = forebay_device::IoBuf::copy_of(&[7; 4096]).freeze();
    forebay_rt::Runtime::real().unwrap().block_on(async move {
        let owner = open(&name, 1, true).await.unwrap();
        owner.write(0, content.clone(), false).await.unwrap();
        owner.flush().await.unwrap();
        assert_eq!(open(&name, 1, true).await.err().unwrap().kind, ErrorKind::Busy);
        let looked_at = open(&name, 1, false).await.unwrap();
        let read = looked_at.read(0, forebay_device::IoBuf::zeroed(4096)).await.unwrap();
        assert_eq!(read[..], content[..]);
        drop(owner);
        open(&name, 1, true).await.unwrap();
    });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_folder_that_is_not_there_is_made_for_a_new_device_alone() {
    let base = std::env::temp_dir().join(format!("forebay-no-store-{}", std::process::id()));
    let folder = base.join("tank");
    let name = format!("file://{}?size=64M", folder.display());
    let given = name.clone();
    forebay_rt::Runtime::real().unwrap().block_on(async move {
        for exclusive in [false, true] {
            open(&given, 1, exclusive).await.err().unwrap();
        }
    });
    assert!(!base.exists(), "a search has made it");
    resolve_new(&name).unwrap();
    assert!(folder.is_dir());
    std::fs::remove_dir_all(&base).unwrap();
}
