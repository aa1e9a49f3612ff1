use super::*;
use serde_json::json;

fn base() -> Value {
    json!({
        "device": "intel-320-80gb",
        "seed": 3,
        "phases": [{ "load": { "minutes": 1, "pattern": { "random_share": 1.0 } } }],
    })
}

#[test]
fn grid_has_a_line_for_each_point_in_order() {
    let axes = json!({ "seed": [1, 2], "phases.0.load.minutes": [1, 2] }).to_string();
    let lines = grid("timeline", &base().to_string(), &axes, 2).expect("runs");
    let lines: Vec<Value> = serde_json::from_str(&lines).unwrap();
    let points: Vec<&Value> = lines.iter().map(|line| &line["point"]["seed"]).collect();
    assert_eq!(points, [&json!(1), &json!(2), &json!(1), &json!(2)]);
    let rate = |line: &Value| {
        line["outcome"]["timeline"]["phases"][0]["whole"]["iops"].as_f64().expect("a rate")
    };
    assert!(lines.iter().all(|line| rate(line) > 1000.0));
}

#[test]
fn data_that_is_no_task_is_refused_in_one_line() {
    for (change, said) in [
        (json!({ "color": 1 }), "unknown field"),
        (json!({ "seed": null }), "task.seed is no value that a task can have"),
        (json!({ "device": "no such" }), "no such"),
        (json!({ "seed": u64::MAX }), "task.seed is no value"),
    ] {
        let mut base = base();
        for (name, value) in change.as_object().unwrap() {
            base[name] = value.clone();
        }
        let why = grid("timeline", &base.to_string(), "{}", 1).unwrap_err().to_string();
        assert!(why.contains(said) && !why.contains('\n'), "{why}");
    }
    assert!(matches!(grid("timeline", "{", "{}", 1), Err(TaskError::Json(_))));
    assert!(device("{}").is_err() && page("no such").is_err());
}

#[test]
fn page_of_a_device_has_the_description_that_models_are_built_from() {
    let page: Value = serde_json::from_str(&page("ddrdrive-x1").unwrap()).unwrap();
    let spec = device(&page["device"].to_string()).expect("a description");
    assert_eq!(spec, catalogue::find("ddrdrive-x1").unwrap().device);
}

#[test]
fn experiment_that_is_not_there_is_refused() {
    let wish = Wish {
        experiment: "no such".into(),
        devices: Vec::new(),
        out: PathBuf::from("nowhere"),
        seed: 1,
        scale: 0,
        small: true,
        threads: 1,
    };
    assert!(matches!(experiment(&wish), Err(TaskError::Lab(_))));
}
