use super::*;

fn fires(schedule: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let schedule: Schedule = schedule.parse().unwrap();
    let zone: Tz = zone.parse().unwrap();
    let mut time: Timestamp = after.parse().unwrap();
    (0..count)
        .map_while(|_| {
            time = schedule.next_after(time, zone)?;
            Some(time.to_utc().format("%m-%dT%H:%M").to_string())
        })
        .collect()
}

#[test]
fn fields_lists_ranges_and_names() {
    let after = "2026-02-26T10:07:30Z";
    assert_eq!(fires("*/7 * * * *", "UTC", after, 2), ["02-26T10:14", "02-26T10:21"]);
    assert_eq!(fires("5/15 * * * *", "UTC", after, 2), ["02-26T10:20", "02-26T10:35"]);
    assert_eq!(
        fires("0 22-2 * * *", "UTC", after, 3),
        ["02-26T22:00", "02-26T23:00", "02-27T00:00"]
    );
    assert_eq!(
        fires("0 0 * * FRI-MON", "UTC", after, 5),
        [
            "02-27T00:00",
            "02-28T00:00",
            "03-01T00:00",
            "03-02T00:00",
            "03-06T00:00"
        ]
    );
    assert_eq!(fires("0 0 l * *", "UTC", after, 2), ["02-28T00:00", "03-31T00:00"]);
    assert_eq!(fires("0 0 * * 5#2", "UTC", after, 2), ["03-13T00:00", "04-10T00:00"]);
    assert_eq!(fires("0 0 * * L5", "UTC", after, 2), ["02-27T00:00", "03-27T00:00"]);
    assert_eq!(fires("0 0 29 2 *", "UTC", after, 1), ["02-29T00:00"]);
    assert_eq!(fires("@weekly", "UTC", after, 1), ["03-01T00:00"]);
    assert_eq!(fires("0 0 31 2 *", "UTC", after, 1), Vec::<String>::new());
}

#[test]
fn either_day_matches_where_both_are_restricted() {
    let after = "2026-02-26T10:07:30Z";
    assert_eq!(
        fires("0 0 1,15 * MON", "UTC", after, 3),
        ["03-01T00:00", "03-02T00:00", "03-09T00:00"]
    );
    assert_eq!(fires("0 0 1-31 * MON", "UTC", after, 2), ["02-27T00:00", "02-28T00:00"]);
    assert_eq!(fires("0 0 30 2 1", "UTC", "2026-03-01T00:00:00Z", 1), ["02-01T00:00"]);
}

#[test]
fn a_time_that_the_clock_jumps_over_fires_after_the_jump() {
    // 2026-03-08 02:00 EST becomes 03:00 EDT, which is 07:00 UTC.
    assert_eq!(
        fires("30 2 * * *", "America/New_York", "2026-03-07T17:00:00Z", 2),
        ["03-08T07:00", "03-09T06:30"]
    );
    assert_eq!(
        fires("30 * * * *", "America/New_York", "2026-03-08T05:45:00Z", 2),
        ["03-08T06:30", "03-08T07:30"]
    );
    // Midnight itself is missing in Santiago on 2026-09-06.
    assert_eq!(
        fires("0 0 * * *", "America/Santiago", "2026-09-05T12:00:00Z", 2),
        ["09-06T04:00", "09-07T03:00"]
    );
}

#[test]
fn a_time_that_comes_twice_fires_once_unless_it_is_every_hours() {
    // 2026-11-01 02:00 EDT becomes 01:00 EST.
    assert_eq!(
        fires("30 1 * * *", "America/New_York", "2026-10-31T16:00:00Z", 2),
        ["11-01T05:30", "11-02T06:30"]
    );
    assert_eq!(
        fires("*/30 * * * *", "America/New_York", "2026-11-01T04:45:00Z", 5),
        [
            "11-01T05:00",
            "11-01T05:30",
            "11-01T06:00",
            "11-01T06:30",
            "11-01T07:00"
        ]
    );
    // Between the two: the first has passed, the second must not count as one.
    assert_eq!(
        fires("30 1 * * *", "America/New_York", "2026-11-01T05:45:00Z", 1),
        ["11-02T06:30"]
    );
    assert_eq!(
        fires("15 0,1,23 * * *", "America/New_York", "2026-11-01T04:00:00Z", 3),
        ["11-01T04:15", "11-01T05:15", "11-02T04:15"]
    );
}

#[test]
fn seconds_and_years_follow_the_other_fields() {
    let fires = |schedule: &str, after: &str, count: usize| -> Vec<String> {
        let schedule: Schedule = schedule.parse().unwrap();
        let mut time: Timestamp = after.parse().unwrap();
        (0..count)
            .map_while(|_| {
                time = schedule.next_after(time, Tz::Europe__Berlin)?;
                Some(time.to_utc().format("%Y-%m-%dT%H:%M:%S").to_string())
            })
            .collect()
    };
    let after = "2026-02-26T10:07:30Z";
    assert_eq!(
        fires("* * * * * */20", after, 3),
        ["2026-02-26T10:07:40", "2026-02-26T10:08:00", "2026-02-26T10:08:20"]
    );
    assert_eq!(
        fires("0 12 * * * 5,59", after, 3),
        ["2026-02-26T11:00:05", "2026-02-26T11:00:59", "2026-02-27T11:00:05"]
    );
    assert_eq!(
        fires("0 0 1 1 * 0 2028-2031/2", after, 3),
        ["2027-12-31T23:00:00", "2029-12-31T23:00:00"],
        "no other year"
    );
    assert_eq!(fires("* * * * * 0 2025", after, 1), Vec::<String>::new());
    assert_eq!(fires("* * * * * 30 *", after, 1), ["2026-02-26T10:08:30"]);
    // 2026-03-29 02:00 CET becomes 03:00 CEST, which is 01:00 UTC.
    assert_eq!(
        fires("30 2 * * * 15", "2026-03-28T12:00:00Z", 2),
        ["2026-03-29T01:00:15", "2026-03-30T00:30:15"]
    );
}

#[test]
fn what_is_no_schedule_is_refused_with_its_field() {
    for wrong in [
        "",
        "* * * *",
        "* * * * * 60",
        "* * * * * * 1969",
        "* * * * * * 26",
        "* * * * * * 2026 1",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "a * * * *",
        "1- * * * *",
        "* * * * 5#6",
        "* * * * 5#0",
        "+1 * * * *",
        "001 * * * *",
        "1//2 * * * *",
        ", * * * *",
        "@noon",
        "* * 1W * *",
    ] {
        let refusal = wrong.parse::<Schedule>().unwrap_err();
        assert_eq!(refusal.field, "schedule", "{wrong}");
    }
    let refusal = "* 25 * * *".parse::<Schedule>().unwrap_err();
    assert_eq!(refusal.message, "Invalid cron schedule: \"25\" in field hour");
    assert!(zone(Some("Europe/Berlim")).is_err());
    assert_eq!(zone(None).unwrap(), Tz::UTC);
}

#[test]
fn every_answer_lies_after_the_question() {
    let zones = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Asia/Kathmandu",
    ];
    for schedule in [
        "*/5 * * * *",
        "30 2 * * *",
        "0 0 L * *",
        "59 23 * * SUN#1",
        "0 1,2,3 * 3,10,11 *",
    ] {
        let schedule: Schedule = schedule.parse().unwrap();
        for zone in zones {
            let zone: Tz = zone.parse().unwrap();
            let mut time = Timestamp::parse("2026-01-01T00:00:17Z").unwrap();
            for _ in 0..400 {
                let next = schedule.next_after(time, zone).unwrap();
                assert!(next > time);
                time = next;
            }
        }
    }
}
