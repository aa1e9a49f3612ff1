use super::*;
use proptest::prelude::*;

fn misses(policy: Policy, capacity: u64, order: &[u32]) -> u64 {
    let mut cache = policy.replacement(capacity);
    cache.reserve(64);
    let mut left = Vec::new();
    order.iter().filter(|entry| !cache.access(**entry, &mut left)).count() as u64
}

#[test]
fn names_are_read_back() {
    assert!(Policy::ALL.iter().all(|policy| policy.name().parse() == Ok(*policy)));
    assert_eq!("clock".parse::<Policy>(), Err(UnknownPolicyName));
}

#[test]
fn small_caches_miss_as_worked_out_by_hand() {
    // Two entries; 1 2 1 3 1: LRU keeps 1, FIFO drops it for 3, and SIEVE's hand spares it.
    let order = [1, 2, 1, 3, 1];
    assert_eq!(misses(Policy::Lru, 2, &order), 3);
    assert_eq!(misses(Policy::Fifo, 2, &order), 4);
    assert_eq!(misses(Policy::Sieve, 2, &order), 3);
}

#[derive(Clone, Debug)]
enum Act {
    Access(u32),
    Remove(u32),
    Capacity(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        20 => (0..64u32).prop_map(Act::Access),
        2 => (0..64u32).prop_map(Act::Remove),
        1 => (1..40u64).prop_map(Act::Capacity),
    ]
}

proptest! {
    /// An entry is resident, a ghost or neither; what leaves is said; the capacity holds, and so
    /// does that of the ghosts.
    #[test]
    fn every_entry_is_accounted_for(
        acts in prop::collection::vec(act(), 1..400),
        policy in prop::sample::select(&Policy::ALL[..]),
        capacity in 1u64..40,
    ) {
        let mut cache = policy.replacement(capacity);
        cache.reserve(64);
        let mut capacity = capacity;
        let mut known = [false; 64];
        for act in acts {
            let mut left = Vec::new();
            match act {
                Act::Access(entry) => {
                    let was_resident = cache.is_resident(entry);
                    prop_assert_eq!(cache.access(entry, &mut left), was_resident);
                    prop_assert!(cache.is_resident(entry));
                    known[entry as usize] = true;
                }
                Act::Remove(entry) if known[entry as usize] => {
                    cache.remove(entry);
                    known[entry as usize] = false;
                }
                Act::Remove(_) => {}
                Act::Capacity(new) => {
                    capacity = new;
                    cache.set_capacity(new, &mut left);
                }
            }
            for entry in left {
                known[entry as usize] = cache.is_resident(entry) || cache.is_ghost(entry);
            }
            let all = || (0..64u32).filter(|entry| known[*entry as usize]);
            prop_assert!(all().all(|entry| cache.is_resident(entry) != cache.is_ghost(entry)));
            let resident = all().filter(|entry| cache.is_resident(*entry)).count() as u64;
            prop_assert_eq!(resident, cache.resident());
            prop_assert!(resident <= capacity, "{} of {}", resident, capacity);
            prop_assert!(all().count() as u64 <= 2 * capacity, "ghosts are bounded");
        }
    }
}
