use super::*;

#[test]
fn a_file_that_cannot_be_replaced_leaves_nothing_beside_it() {
    let dir = std::env::temp_dir().join(format!("forebay-lab-replace-{}", std::process::id()));
    let target = dir.join("results.json");
    make_dir(&target).expect("scratch");
    replace(&target, "{}").expect_err("a folder has the name");
    assert_eq!(list(&dir).expect("reads"), [target]);
    std::fs::remove_dir_all(&dir).expect("scratch");
}
