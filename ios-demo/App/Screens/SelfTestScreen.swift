import AppModels
import AppParts
import SwiftUI

/// Whether this phone computes what was verified: signature, runtime, and the golden rows of each model.
struct SelfTestScreen: View {
    let model: SelfTestModel

    var body: some View {
        Cards {
            Card {
                Text("The rows that were shipped with each model are computed here, and compared with the reference.")
                    .foregroundStyle(.secondary)
                if let verdict = model.verdict { Text(verbatim: verdict).font(.headline) }
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
        .onDisappear { model.cancel() }
    }
}

private struct RowCard: View {
    let row: SelfTestModel.Row

    var body: some View {
        Card {
            HStack(alignment: .firstTextBaseline) {
                Text(verbatim: row.model.name).font(.headline)
                Spacer(minLength: 12)
                mark
            }
            .accessibilityElement(children: .combine)
            Text(verbatim: row.model.detail).font(.callout).foregroundStyle(.secondary)
            Text(verbatim: row.signature).font(.callout)
            Text(verbatim: row.runtime).font(.callout)
            switch row.state {
            case .waiting, .running: EmptyView()
            case .failed(let sentence): Problem(sentence: sentence)
            case .done(let report):
                Divider()
                Fact("Same tokens", "\(report.sameTokens) / \(report.rows)")
                Fact("Worst cosine", Formats.cosine(report.worstCosine))
                Fact("Least cosine that is asked for", Formats.cosine(report.minCosine))
                Fact("Signal to quantisation noise", Formats.decibels(report.sqnrDb))
                ForEach(report.failures, id: \.self) { Problem(sentence: $0) }
            }
        }
    }

    @ViewBuilder private var mark: some View {
        switch row.state {
        case .waiting: Image(systemName: "circle.dashed").foregroundStyle(.secondary).accessibilityLabel(Text("Not tested yet"))
        case .running: ProgressView().accessibilityLabel(Text("Being tested"))
        case .failed: Image(systemName: "xmark.circle.fill").foregroundStyle(Theme.warning).accessibilityLabel(Text("Failed"))
        case .done(let report):
            Image(systemName: report.passed ? "checkmark.circle.fill" : "xmark.circle.fill")
                .foregroundStyle(report.passed ? Theme.student : Theme.warning)
                .accessibilityLabel(report.passed ? Text("Passed") : Text("Failed"))
        }
    }
}
