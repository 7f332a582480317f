//! A question -> a choice.
//!
//! Owns how what the tables, the load and the standings say becomes candidates for the policy.
//! Invariant: a decision that is only foreseen takes no pod's probe and nobody's turn.
//! Cost: one table query per prompt of the body, and two or three reads for the load.

use super::*;

/// Those prompts of a body that are looked up and stored: a text shorter than a chunk has nothing to
/// look up.
fn of_use(prompts: &[Prompt]) -> impl Iterator<Item = &Prompt> {
    let of_use = prompts.iter().filter(|prompt| !prompt.chunks.is_empty());
    of_use.take(MAX_PROMPTS)
}

/// Whole chunks of the prompts of a body that are looked up.
pub fn chunks(prompts: &[Prompt]) -> u32 {
    let lengths = of_use(prompts).map(|prompt| prompt.chunks.len());
    u32::try_from(lengths.fold(0usize, usize::saturating_add)).unwrap_or(u32::MAX)
}

impl Router {
    /// Leading chunks that each pod holds, summed over the prompts, and the look-ups of the first.
    pub fn matched(
        &self,
        env: &Env<'_>,
        members: &[Member],
        prompts: &[Prompt],
    ) -> (Vec<u32>, Vec<Query>) {
        let slots: Vec<Slot> = members.iter().filter_map(|member| member.slot).collect();
        let mut matched = vec![0u32; members.len()];
        let mut queries = Vec::new();
        for prompt in of_use(prompts) {
            let query = self.table.query(env.store, &prompt.chunks, &slots);
            let sums = matched
                .iter_mut()
                .zip(members)
                .filter(|(_, m)| m.slot.is_some());
            for ((sum, _), count) in sums.zip(query.matched()) {
                *sum = sum.saturating_add(*count);
            }
            if queries.len() < KEPT_QUERIES {
                queries.push(query);
            }
        }
        (matched, queries)
    }

    /// Looks the prompts up and ranks the pods that serve the model.
    pub fn choose(
        &self,
        env: &Env<'_>,
        members: &[Member],
        question: Question<'_>,
    ) -> Option<Choice> {
        self.decide(env, members, question, true)
    }

    /// What [`Router::choose`] would choose now. Takes no pod's probe, and nobody's turn.
    pub fn foresee(
        &self,
        env: &Env<'_>,
        members: &[Member],
        question: Question<'_>,
    ) -> Option<Choice> {
        self.decide(env, members, question, false)
    }

    fn decide(
        &self,
        env: &Env<'_>,
        members: &[Member],
        question: Question<'_>,
        for_good: bool,
    ) -> Option<Choice> {
        let Question {
            model,
            prompts,
            response,
            recomputes,
        } = question;
        // Before the table, into which a request goes before it counts as load: whoever sees the load of
        // a burst sees the prompt that it brought.
        let (loads, rate) = self.loads(env, members);
        let of_use = if recomputes { &[] } else { prompts };
        let (matched, queries) = self.matched(env, members, of_use);
        let bytes = prompts
            .iter()
            .fold(0usize, |sum, prompt| sum.saturating_add(prompt.bytes));
        // Without a prompt there is nothing that gateways could agree on: take turns.
        let home = prompts
            .first()
            .map_or_else(|| self.next_turn(for_good), |prompt| prompt.home);
        let now_ms = env.now_ms();
        let book = self.standings.read(env.store);
        let maker = response.and_then(|key| match for_good {
            true => self.responses.find(env.store, key, now_ms),
            false => self.responses.peek(env.store, key, now_ms),
        });
        let rank = |probes: bool| {
            let able = self.candidates(members, model, |pod, member| Candidate {
                pod,
                name: &member.pod.name,
                standing: standing(&book, member, now_ms, probes),
                cold_share: book.cold_share(member.key, now_ms),
                matched: matched.get(pod).copied().unwrap_or(0),
                uncached: self.uncached(bytes, matched.get(pod).copied().unwrap_or(0)),
                backlog: loads.get(pod).map_or(0.0, |load| load.backlog),
                running: loads
                    .get(pod)
                    .map_or(0, |load| load.running)
                    .saturating_add(member.others),
            });
            let mut ranking = policy::rank(&self.config.policy, able, rate, home)?;
            if prompts.is_empty() {
                ranking.reason = Reason::NoPrompt;
            }
            let mut all = members.iter().enumerate();
            let maker = maker.and_then(|key| all.find(|(_, member)| member.key == key));
            if let Some((pod, member)) = maker {
                let unfit = standing(&book, member, now_ms, probes) == Standing::Unfit;
                if !unfit || ranking.panic {
                    ranking.stick_to(pod);
                }
            }
            Some(ranking)
        };
        let mut ranking = rank(true)?;
        let best = ranking.pods.first().and_then(|pod| members.get(*pod));
        let probe = |m: &Member| standing(&book, m, now_ms, true) == Standing::Probe;
        if let Some(best) = best.filter(|member| for_good && probe(member)) {
            if !self.standings.claim_probe(env.store, best.key, now_ms) {
                ranking = rank(false)?;
            }
        }
        Some(Choice {
            ranking,
            matched,
            bytes,
            queries,
        })
    }

    /// The pods that serve `model`, or all of them when none is known to: vLLM answers its own 404.
    fn candidates<'a>(
        &self,
        members: &'a [Member],
        model: Option<&str>,
        candidate: impl Fn(usize, &'a Member) -> Candidate<'a>,
    ) -> Vec<Candidate<'a>> {
        let serves = |member: &Member| model.is_none_or(|model| member.pod.serves(model));
        let any = members.iter().any(serves);
        let able = members.iter().enumerate();
        able.filter(|(_, member)| !any || serves(member))
            .map(|(pod, member)| candidate(pod, member))
            .collect()
    }

    fn next_turn(&self, for_good: bool) -> u64 {
        let turn = self.turn.get();
        if for_good {
            self.turn.set(turn.wrapping_add(1));
        }
        turn
    }
}
