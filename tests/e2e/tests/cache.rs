//! What it is all for: tokens that the pods themselves find in their caches.

use e2e::client::Version;
use e2e::envoy::Envoy;
use e2e::rig;
use sim_vllm::{PodConfig, SimPod};

const CHATS: usize = 9;
const TURNS: usize = 4;

fn pods() -> [SimPod; 3] {
    rig::PODS.map(|name| SimPod::start(PodConfig::named(name)).expect("the pod starts"))
}

/// Plays chats in turns over new connections. Returns tokens of all prompts but the first turns',
/// and how many of them the pods found cached.
async fn play(envoy: &Envoy, decisions: bool) -> (u64, u64) {
    let mut chats: Vec<_> = (0..CHATS)
        .map(|i| vec![("user".to_string(), rig::text(&format!("chat {i}"), 1500))])
        .collect();
    let (mut prompts, mut cached) = (0, 0);
    for turn in 0..TURNS {
        for (i, chat) in chats.iter_mut().enumerate() {
            let messages: Vec<_> = chat.iter().map(|(r, t)| (r.as_str(), t.as_str())).collect();
            let version = [Version::H1, Version::H2][i % 2];
            let mut conn = envoy.connect(version).await;
            let reply = conn
                .post("/v1/chat/completions", &rig::chat(&messages))
                .await;
            assert_eq!(reply.status, 200, "{reply:?}");
            let answer = reply.json();
            if turn > 0 {
                prompts += answer["usage"]["prompt_tokens"].as_u64().expect("usage");
                cached += reply.cached_tokens();
            }
            if decisions {
                let decision = reply.decision();
                let what = format!("chat {i}, turn {turn}: {decision:?}, {}", answer["usage"]);
                assert_eq!(reply.headers["x-sim-pod"], decision.pod.as_str(), "{what}");
                // Four bytes a token, and the framing of the two differs a little.
                let matched_bytes = u64::try_from(decision.matched).expect("full header") * 256;
                assert!(reply.cached_tokens() * 4 + 512 >= matched_bytes, "{what}");
                assert_eq!(turn > 0, reply.cached_tokens() > 0, "{what}");
            }
            let text = answer["choices"][0]["message"]["content"]
                .as_str()
                .expect("an answer");
            chat.push(("assistant".into(), text.into()));
            chat.push((
                "user".into(),
                rig::text(&format!("question {i} {turn}"), 600),
            ));
        }
    }
    (prompts, cached)
}

#[tokio::test]
async fn later_turns_are_cached_with_the_filter_and_not_without() {
    for concurrency in [1, 2, 4] {
        let pods = pods();
        let envoy = rig::envoy(pods.each_ref().map(|p| p.addr.port()), concurrency).await;
        let (prompts, cached) = play(&envoy, true).await;
        // All but the newest question and answer of each turn.
        assert!(cached * 10 >= prompts * 6, "{cached} of {prompts} tokens");

        let strangers = self::pods();
        let ports = strangers.each_ref().map(|p| p.addr.port());
        let bypassed = rig::envoy_with(ports, concurrency, |b| b.without_filter()).await;
        let (_, by_chance) = play(&bypassed, false).await;
        assert!(
            by_chance * 10 < cached * 9,
            "{by_chance} by chance, {cached} by choice"
        );
    }
}
