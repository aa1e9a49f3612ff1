use super::*;

fn planned(text: &str) -> Result<Plan, Failure> {
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    plan(&words)
}

#[test]
fn numbers_at_the_end_are_not_pools() {
    let plan = |pools: &[&str], seconds: Option<u64>, reports| Plan {
        pools: pools.iter().map(|p| (*p).to_owned()).collect(),
        interval: seconds.map(Nanos::from_secs),
        reports,
    };
    assert_eq!(planned("").unwrap(), plan(&[], None, Some(1)));
    assert_eq!(planned("tank").unwrap(), plan(&["tank"], None, Some(1)));
    assert_eq!(planned("tank 5").unwrap(), plan(&["tank"], Some(5), None));
    assert_eq!(planned("a b 5 3").unwrap(), plan(&["a", "b"], Some(5), Some(3)));
    assert_eq!(planned("1").unwrap(), plan(&[], Some(1), None));
    assert_eq!(planned("nan inf").unwrap(), plan(&["nan", "inf"], None, Some(1)));
    assert_eq!(planned("0.5").unwrap().interval, Some(Nanos::from_millis(500)));
    for bad in ["0", "-1", "1 0", "1 1.5", "100000"] {
        assert_eq!(planned(bad).unwrap_err().code, ErrorCode::Usage, "{bad}");
    }
}
