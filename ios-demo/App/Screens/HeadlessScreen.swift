import AppModels
import AppParts
import SwiftUI
import UIKit

/// A run that a computer asked for: the screen stays on and shows how far it is, and the app ends when it has ended.
struct HeadlessScreen: View {
    @State private var model: HeadlessModel

    init(_ model: HeadlessModel) { _model = State(initialValue: model) }

    var body: some View {
        VStack(alignment: .leading, spacing: Theme.spacing) {
            Label("Benchmark for a computer", systemImage: "desktopcomputer").font(.title2.weight(.semibold))
            Text(verbatim: model.run).font(.headline).monospaced()
            RunProgressView(progress: model.progress)
            Text("Leave the phone alone until the app closes: whatever else it does is measured with it.").foregroundStyle(.secondary)
        }
        .frame(maxWidth: 560)
        .padding(Theme.spacing)
        .frame(maxWidth: .infinity, maxHeight: .infinity)
        .background(Theme.ground)
        .task {
            UIApplication.shared.isIdleTimerDisabled = true
            model.start()
            let end = await model.settled()
            // `devicectl … launch --console` waits for the end of the process.
            exit(end.state == .finished ? 0 : 1)
        }
    }
}
