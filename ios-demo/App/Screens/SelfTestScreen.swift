import AppModels
import AppParts
import SwiftUI

/// Whether this phone computes what was verified: signature, runtime, and the golden rows of each model on each compute unit.
struct SelfTestScreen: View {
    let model: SelfTestModel
    @Environment(\.scenePhase) private var phase

    var body: some View {
        Cards {
            Card {
                Text("Runs the texts that were verified with each model on this phone, and compares the answers.")
                    .foregroundStyle(.secondary)
                if let verdict = model.verdict { Text(verbatim: Words.verdict(verdict)).font(.title2.weight(.semibold)) }
                Button(model.isRunning ? "Stop" : "Test all models", systemImage: model.isRunning ? "stop.fill" : "checkmark.seal") {
                    if model.isRunning { model.cancel() } else { model.run() }
                }
                .buttonStyle(.borderedProminent)
                .frame(minHeight: Theme.target)
            }
            ForEach(model.rows) { RowCard(row: $0) }
            ForEach(model.refused) { refused in
                Card {
                    Text(verbatim: refused.id).font(.headline)
                    Problem(sentence: refused.why)
                }
            }
        }
        .navigationTitle("Self-test")
        .navigationBarTitleDisplayMode(.inline)
        .onLeave(phase) { model.cancel() }
        .onChange(of: model.verdict) { _, verdict in
            if let verdict { announce(Words.verdict(verdict)) }
        }
    }
}

/// A model in one line, with the details behind it.
private struct RowCard: View {
    let row: SelfTestModel.Row

    var body: some View {
        Card {
            DisclosureGroup {
                VStack(alignment: .leading, spacing: 12) {
                    Text(verbatim: Words.signature(row.model.model.signedBy)).font(.callout)
                    Text(verbatim: Words.runtime(row.model)).font(.callout)
                    ForEach(row.units) { UnitDetails(test: $0) }
                }
                .frame(maxWidth: .infinity, alignment: .leading)
            } label: {
                HStack(alignment: .firstTextBaseline) {
                    mark
                    VStack(alignment: .leading, spacing: 2) {
                        Text(verbatim: Words.model(ModelName(row.model))).font(.headline)
                        Text(verbatim: Words.outcome(row.outcome)).font(.callout).foregroundStyle(.secondary)
                    }
                }
                .frame(minHeight: Theme.target)
                .accessibilityElement(children: .combine)
            }
        }
    }

    @ViewBuilder private var mark: some View {
        switch row.outcome {
        case .notTested: Image(systemName: "circle.dashed").foregroundStyle(.secondary).accessibilityHidden(true)
        case .running: ProgressView().accessibilityHidden(true)
        case .same: Image(systemName: "checkmark.circle.fill").foregroundStyle(Theme.student).accessibilityHidden(true)
        case .differs, .failed:
            Image(systemName: "xmark.circle.fill").foregroundStyle(Theme.warning).accessibilityHidden(true)
        }
    }
}

/// What a model showed on a compute unit.
private struct UnitDetails: View {
    let test: SelfTestModel.UnitTest

    var body: some View {
        Divider()
        Text(verbatim: Words.unit(test)).font(.callout.weight(.medium))
        if let known = test.known { Text(verbatim: known).font(.callout).foregroundStyle(.secondary) }
        if case .done(let report) = test.state {
            Fact("Same tokens", "\(report.sameTokens) / \(report.rows)")
            if let worst = report.worstCosine { Fact("Least similar text", Formats.cosine(worst)) }
            if let least = report.minCosine { Fact("Least similarity that is asked for", Formats.cosine(least)) }
            if let sqnr = report.sqnrDb { Fact("Signal to quantisation noise", Words.noise(sqnr)) }
            ForEach(report.differences.indices, id: \.self) { Problem(sentence: Words.difference(report.differences[$0])) }
        }
    }
}
