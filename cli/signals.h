// The signals that ask the program to end.
#pragma once

namespace cli {

/// From now on SIGINT, SIGTERM, SIGHUP, SIGUSR1, which batch systems send before the time is up, and a closed pipe set
/// signal_seen(), and the program ends with 128 + the signal's number. A second signal ends it at once. A signal that
/// was ignored when the program began stays ignored, as nohup needs it.
void catch_signals();
/// The number of the signal that has arrived, or 0.
int signal_seen();
/// Forgets SIGINT, for a program that goes on after what Ctrl-C has ended.
void forget_interrupt();

}  // namespace cli
