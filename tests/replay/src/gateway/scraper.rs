//! What the filter learns from the pods' own metrics: that a pod serves, and that it is another
//! process than before.
//!
//! Owns the filter's own keeper, which decides when to ask and what an answer means; this only
//! answers in the pods' place, at once. Load is left out: here every rule counts its own requests.

use crate::pod::Pod;
use prefix_router::pods::keeper::{Answer, Keeper, Question};
use prefix_router::router::{Env, Router};

/// See the module.
pub struct Scraper(Keeper);

impl Scraper {
    /// One for a router that has just started. `owner`: a number that no other gateway has.
    pub fn new(owner: u64) -> Self {
        Self(Keeper::new("default", owner, true))
    }

    /// Asks who is due. `pods`: index in the pool -> pod of the simulation.
    pub fn tick(&mut self, router: &Router, env: &Env<'_>, members: &[usize], pods: &[Pod]) {
        let keeper = &mut self.0;
        let config = router.config();
        if !keeper.hold(env.store, config, env.now_ms()) {
            return;
        }
        // Only so many at a time: the next are asked when those have answered.
        loop {
            let calls = keeper.calls(config, env.now_ms());
            if calls.is_empty() {
                return;
            }
            for call in calls {
                let body = body(&call.question, members, pods);
                let answer = body.as_ref().map(|body| Answer::Some(200, body.as_bytes()));
                let answer = answer.unwrap_or(Answer::None);
                let news = keeper.answer(config, call.question, answer, env.clock, &|_| 0);
                router.learn(env, keeper, &news);
            }
        }
    }
}

/// What the pod says, if it is there.
fn body(question: &Question, members: &[usize], pods: &[Pod]) -> Option<String> {
    let (Question::Metrics(name) | Question::Models(name)) = question else {
        return None;
    };
    let mut members = members.iter();
    let pod = members.find(|pod| *name == super::filter::name(**pod))?;
    let pod = pods.get(*pod).filter(|pod| pod.up)?;
    Some(match question {
        Question::Metrics(_) => format!("process_start_time_seconds {}\n", pod.life + 1),
        _ => r#"{"data": []}"#.to_owned(),
    })
}
