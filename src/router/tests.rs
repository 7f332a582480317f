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
    Env {
        store,
        meter: &Silent,
        clock: &|| 1000,
    }
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
