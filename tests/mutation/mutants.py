"""The mutants: one line of the source made wrong, and the test that must notice. Kept to errors that such code really has."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str  # from the repository's root
    old: str  # stands once in the file, within one line or a few
    new: str
    target: str  # the test binary
    test: str  # the GoogleTest name, or pattern, that must fail


MUTANTS = (
    # ---- routing ----
    Mutant("scaling factor applied twice", "src/moe/router.cc",
           "weight *= config.scaling_factor;", "weight *= config.scaling_factor * config.scaling_factor;",
           "moe_router_test", "Router.ScalingFactorCountsOnce"),
    Mutant("the router's bias lost", "src/moe/router.cc",
           "selection[e] += bias[e];", "selection[e] += 0.0f * bias[e];",
           "moe_router_test", "Router.*"),
    Mutant("weights from the biased scores", "src/moe/router.cc",
           "weigh(config, scores, row_ids,", "weigh(config, selection, row_ids,",
           "moe_router_test", "Router.WeightsComeFromTheUnbiasedScores"),
    Mutant("a losing group gets 0 instead of never", "src/moe/router.cc",
           "selection.begin() + g * size, size, kNever);", "selection.begin() + g * size, size, 0.0f);",
           "moe_router_test", "Router.LosingGroupsNeverWinAgainstNegativeScores"),
    Mutant("range check of expert ids off by one", "src/moe/router.cc",
           "static_cast<uint32_t>(ids[i]) >= num_experts", "static_cast<uint32_t>(ids[i]) > num_experts",
           "moe_router_test", "ValidateRouting.RefusesEachDefectByName"),
    Mutant("a row whose weights are all 0 passes", "src/moe/router.cc",
           "any = any || weights[i] != 0.0f;", "any = any || weights[i] >= 0.0f;",
           "moe_router_test", "ValidateRouting.RefusesEachDefectByName"),
    # ---- sums ----
    Mutant("a partial sum reduced twice", "src/moe/expert_dispatcher.cc",
           "      ++cursor;\n", "      prepared.sources.push_back(partials[i] + cursor * row_bytes);\n      ++cursor;\n",
           "moe_dispatcher_test", "AddPartials.*"),
    Mutant("partial sums under another permutation of rows", "src/moe/expert_dispatcher.cc",
           "partials[i] + cursor * row_bytes", "partials[i] + (rows.size() - 1 - cursor) * row_bytes",
           "moe_dispatcher_test", "AddPartials.*"),
    Mutant("a row's replica depends on its place in the batch", "src/moe/expert_dispatcher.cc",
           "routing_hash(ids, weights) % replicas", "row % replicas",
           "moe_dispatcher_test", "ExpertDispatcher.ReplicasShareTheRowsAndARowsChoiceDoesNotDependOnItsNeighbours"),
    Mutant("shared expert added by every owner of a row", "src/moe/expert_dispatcher.cc",
           "part.shared_rows.push_back(first_slot && slice == shared_slice ? 1 : 0);", "part.shared_rows.push_back(first_slot || slice == shared_slice ? 1 : 0);",
           "moe_dispatcher_test", "ExpertDispatcher.*"),
    Mutant("shared expert added where attention has it", "src/moe/moe_block.cc",
           "if (!options.runs_shared_experts || shape.shared_intermediate_size == 0) return false;",
           "if (shape.shared_intermediate_size == 0) return false;",
           "moe_block_test", "MoeBlock.*"),
    Mutant("shared expert added twice", "src/kernels/isa/combine.h",
           "sum = add(sum, shared);", "sum = add(add(sum, shared), shared);",
           "kernels_test", "*CombinePlain*"),
    Mutant("a contribution not rounded to the grid before it is added", "src/kernels/isa/combine.h",
           "out[i] += on_grid(static_cast<double>(shared[i]));", "out[i] += static_cast<double>(shared[i]);",
           "kernels_test", "*CombineDeterministicIsExactInAnyOrder*"),
    Mutant("a row's slots in the wrong order", "src/moe/expert_runner.cc",
           "row_index_[at] = slot / routing.top_k;", "row_index_[at] = slot % rows;",
           "moe_block_test", "MoeBlock.EqualsTheFormulaInFloat64"),
    Mutant("the parts of a sum rounded in another place", "src/kernels/isa/combine.h",
           "        sum = rounded_to_bf16(sum);\n", "",
           "kernels_test", "*PartsMeetAnywhere*"),
    # ---- quantised activations ----
    Mutant("the scale dropped on the way", "src/kernels/activation_format.cc",
           "gather(from.scales, dtype_bytes(scale_dtype(from.format), from.scale_stride),", "if (row_index.empty()) gather(from.scales, dtype_bytes(scale_dtype(from.format), from.scale_stride),",
           "afd_frame_test", "TileFrame.ScalesTravelWithTheirRowsUnderOnePermutation"),
    Mutant("a scale row of another row", "src/kernels/activation_format.cc",
           "const size_t at = row_index.empty() ? row : row_index[row];", "const size_t at = row_index.empty() || bytes < cols ? row : row_index[row];",
           "afd_frame_test", "TileFrame.*"),
    # ---- steps ----
    Mutant("the wait for the experts dropped", "src/program/operations_ffn.cc",
           "if (step.exchange.state == FfnExchange::State::submitted) return make_error(ErrorCode::would_block, {});", "",
           "executor_test", "ExecutorTest.WaitsForALateReplyAndCountsTheWait"),
    Mutant("padded rows sent and computed", "src/program/operations_ffn.cc",
           "request.rows = step.rows();", "request.rows = step.capacity;",
           "executor_test", "ExecutorTest.*"),
    Mutant("replayed without attention's word", "src/ffn/prepared_programs.cc",
           "if (std::ranges::find(words, 0u) != words.end()) return {};", "",
           "ffn_scheduler_test", "PreparedPrograms.*"),
    Mutant("replayed with more rows than were captured", "src/ffn/prepared_programs.cc",
           "return one.size >= rows; });", "return one.size + 1 >= rows; });",
           "ffn_scheduler_test", "PreparedPrograms.*"),
    # ---- wire ----
    Mutant("a reply accepted without its attempt", "src/afd/in_flight.cc",
           "entry.attempt != reply.attempt || ", "",
           "afd_handshake_test", "InFlight.*"),
    Mutant("the same reply accepted twice", "src/afd/in_flight.cc",
           "!entry.got[reply.tile] && ", "",
           "afd_handshake_test", "InFlight.OnlyTheExpectedReplyMatches"),
    Mutant("token ids beside a routing accepted", "src/afd/frame_rules.cc",
           "if (token_ids && (ids || weights))", "if (token_ids && ids && !weights)",
           "afd_frame_test", "Frame.PairRules*"),
    Mutant("a shared setting not compared", "src/afd/split_settings.cc",
           'fmt::format("{}", s.top_k), kSameModel}', 'std::string("any"), kSameModel}', "afd_handshake_test", "Handshake.EverySettingIsComparedAndNamed"),
    Mutant("the credit given back before the message is read", "src/transport/tcp_receiver.cc",
           "  partial_ = {frame.channel, free.take(), frame.value};\n",
           "  partial_ = {frame.channel, free.take(), frame.value};\n  sender_->give_credit(frame.channel);\n",
           "transport_test", "*ContractTest.CreditsRunOutAndComeBackWhenLeasesAreDestroyedByAnotherThread/tcp*"),
    # ---- exchange among FFN ranks ----
    Mutant("a home group ends with the first owner's answer", "src/ffn/home_groups.cc",
           "if (answer && --group->unanswered > 0) return;", "--group->unanswered;",
           "ffn_exchange_test", "*Exchange.EqualsTheBlock*"),
    Mutant("an answer to all rows read as one to some", "src/ffn/home_groups.cc",
           "std::memcpy(sums + row * row_bytes, sums + rows[row] * row_bytes, row_bytes);",
           "std::memcpy(sums + row * row_bytes, sums + row * row_bytes + 0 * rows[row], 0);",
           "ffn_exchange_test", "*Exchange.EqualsTheBlock*"),
    Mutant("a part sent on without attention's word", "src/ffn/home_groups.cc",
           "request.program = word_of(group, request.rows);", "request.program = 0;",
           "ffn_exchange_graph_test", "ExchangeGraph.AHomeAndItsPeers*"),
    Mutant("a part sent on with a word that attention did not give", "src/ffn/home_groups.cc",
           "if (!group.replays) return 0;", "if (group.rows == 0) return 0;",
           "ffn_exchange_graph_test", "ExchangeGraph.AHomeAndItsPeers*"),
    # ---- who holds what ----
    Mutant("a piece without an owner does not stop the start", "src/moe/expert_map.cc",
           "if (!missing.empty()) {", "if (missing.size() > shape.num_experts) {",
           "moe_expert_map_test", "ExpertMap.AMissingPieceNamesLayersAndExperts"),
    Mutant("a rank computes experts that it does not hold", "src/moe/moe_block.cc",
           "].empty() ? 0.0f : routing.weights[i];", "].empty() ? routing.weights[i] : routing.weights[i];",
           "moe_block_test", "MoeBlock.ExpertsHeldElsewhereWeighNothing"),
)
