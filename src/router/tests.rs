use super::*;
use crate::metrics::Silent;
use crate::prompt;
use crate::store::MemoryStore;

fn router(pods: &[&str], more: &str, board: &Rc<LoadBoard>) -> Router {
    let pods: Vec<String> = pods
        .iter()
        .map(|name| format!(r#"{{"name": "{name}"}}"#))
        .collect();
    let text = format!(r#"{{"pods": [{}]{more}}}"#, pods.join(","));
    Router::new(Config::parse(text.as_bytes()).unwrap(), board.clone(), true)
}

fn board() -> Rc<LoadBoard> {
    Rc::new(LoadBoard::new("default", 1))
}

fn env(store: &MemoryStore) -> Env<'_> {
    Env::new(store, &Silent, &|| 1000)
}

fn registry(names: &[&str]) -> Registry {
    let known = |name: &&str| Known {
        name: (*name).to_owned(),
        discovered: true,
        ..Known::default()
    };
    Registry {
        polled_ms: 1,
        pods: names.iter().map(known).collect(),
        ..Registry::default()
    }
}

fn publish(router: &Router, env: &Env<'_>, names: &[&str]) {
    let registry = registry(names);
    router.seat(env, &registry);
    registry.save(env.store, &Registry::key("default"));
}

#[test]
fn discovered_pods_have_a_place_until_they_leave() {
    let (store, board) = (MemoryStore::default(), board());
    let env = env(&store);
    let text = r#"{"discovery": {"cluster": "v-*"}}"#;
    let new = || Router::new(Config::parse(text.as_bytes()).unwrap(), board.clone(), true);
    let (holder, other) = (new(), new());
    assert!(other.members(&env).is_empty());
    publish(&holder, &env, &["v-0", "v-1"]);
    // Without a tick, for there was none before.
    assert_eq!(other.members(&env).len(), 2);
    let prompts = one("on v-0", 256);
    let _ = credited(&other, &env, &prompts);
    let matched = |router: &Router| chosen(router, &env, &prompts).matched;
    assert!(matched(&holder)[0] > 0);
    publish(&holder, &env, &["v-1", "v-2"]);
    other.tick(&env);
    assert_eq!(matched(&other), [0, 0]);
    assert!(other
        .members(&env)
        .iter()
        .all(|member| member.slot.is_some()));
    publish(&holder, &env, &["v-0"]);
    other.tick(&env);
    assert_eq!(matched(&other), [0], "it was away");
    let _ = credited(&other, &env, &prompts);
    assert!(matched(&other)[0] > 0);
    holder.restarted(&env, &registry(&["v-0"]).pods[0]);
    assert_eq!(matched(&other), [0], "another process");
}

#[test]
fn a_first_list_to_come_takes_no_credit_away() {
    let (store, board) = (MemoryStore::default(), board());
    let env = env(&store);
    let before = router(&["v-0"], "", &board);
    let prompts = one("known", 256);
    let _ = credited(&before, &env, &prompts);
    let text = r#"{"discovery": {"cluster": "v-*"}, "pods": [{"name": "other"}]}"#;
    let after = Router::new(Config::parse(text.as_bytes()).unwrap(), board, true);
    assert!(after.members(&env)[0].slot.is_some());
    publish(&after, &env, &["v-0"]);
    let matched = chosen(&after, &env, &prompts).matched;
    assert!(matched[0] == 0 && matched[1] > 0, "{matched:?}");
}

#[test]
fn only_the_first_look_ups_of_many_prompts_are_kept() {
    let (store, board) = (MemoryStore::default(), board());
    let (env, router) = (env(&store), router(&["a"], "", &board));
    let texts = (0..100).map(|n| format!("{n:03}").repeat(if n % 2 == 0 { 200 } else { 1 }));
    let prompts: Vec<Prompt> = texts
        .flat_map(|text| prompt::raw(text.as_bytes(), None, 256).prompts)
        .collect();
    let chains: Vec<_> = prompts.iter().map(|prompt| prompt.chunks.clone()).collect();
    let chains: Vec<_> = chains.into_iter().filter(|c| !c.is_empty()).collect();
    let whole: usize = chains.iter().map(Vec::len).sum();
    let first = chosen(&router, &env, &prompts);
    assert_eq!(
        (first.queries.len(), first.matched),
        (KEPT_QUERIES, vec![0])
    );
    let credit = router
        .credit(&env, &router.members(&env), 0, &chains, first.queries)
        .unwrap();
    let matched = |router: &Router| chosen(router, &env, &prompts).matched[0];
    assert_eq!(matched(&router) as usize, whole);
    router.take_back(&env, credit, &chains);
    assert_eq!(matched(&router), 0);
}

fn chosen(router: &Router, env: &Env<'_>, prompts: &[Prompt]) -> Choice {
    let question = Question {
        prompts,
        ..Question::default()
    };
    router.choose(env, &router.members(env), question).unwrap()
}

fn one(text: &str, chunk_bytes: usize) -> Vec<Prompt> {
    prompt::raw(text.repeat(400).as_bytes(), None, chunk_bytes).prompts
}

fn credited(router: &Router, env: &Env<'_>, prompts: &[Prompt]) -> (Credit, Vec<Vec<ChunkHash>>) {
    let queries = chosen(router, env, prompts).queries;
    let chains: Vec<_> = prompts.iter().map(|prompt| prompt.chunks.clone()).collect();
    (
        router
            .credit(env, &router.members(env), 0, &chains, queries)
            .unwrap(),
        chains,
    )
}

/// While a listener drains, the old configuration ticks beside the new one.
fn old_beside_new(old: Router, new: Router, chunk_bytes: usize) {
    let store = MemoryStore::default();
    let env = env(&store);
    old.members(&env);
    new.members(&env);
    let prompts = one("kept", chunk_bytes);
    let _ = credited(&new, &env, &prompts);
    let before = chosen(&new, &env, &prompts).matched;
    assert!(before[0] > 0);
    old.tick(&env);
    old.members(&env);
    assert_eq!(chosen(&new, &env, &prompts).matched, before);
}

#[test]
fn an_old_configuration_takes_no_slot_from_the_new_one() {
    let (board, full) = (board(), r#", "max_pods": 1"#);
    let (old, new) = (router(&["a"], full, &board), router(&["b"], full, &board));
    old_beside_new(old, new, 256);
}

#[test]
fn an_old_geometry_does_not_overwrite_the_new_one() {
    let (board, chunks) = (board(), r#", "chunk_bytes": 128"#);
    let (old, new) = (router(&["a"], "", &board), router(&["a"], chunks, &board));
    old_beside_new(old, new, 128);
}

#[test]
fn a_geometry_that_comes_back_twice_revives_nothing() {
    let (store, board) = (MemoryStore::default(), board());
    let env = env(&store);
    let a = |pod| router(&[pod], "", &board);
    let b = || router(&["a"], r#", "chunk_bytes": 128"#, &board);
    let prompts = one("long gone", 256);
    for turn in 0..3 {
        let back = a(["a", "b", "c"][turn]);
        let matched = chosen(&back, &env, &prompts).matched;
        assert_eq!(matched, [0], "turn {turn}: a pod that never saw it");
        let _ = credited(&back, &env, &prompts);
        b().members(&env);
    }
}
